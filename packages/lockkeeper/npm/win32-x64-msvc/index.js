'use strict';

// Where the file is. It is not loaded here: bundlers cannot follow that. Written so that tools that
// trace files see them.
const path = require('path');
exports.addon = path.join(__dirname, 'lockkeeper.win32-x64-msvc.node');
