'use strict';

// Where the files are. They are not loaded here: bundlers cannot follow that. Written so that tools
// that trace files see them.
const path = require('path');
exports.addon = path.join(__dirname, 'lockkeeper.darwin-arm64.node');
exports.daemon = path.join(__dirname, 'lockkeeper');
