'use strict';

// Where the files are. They are not loaded here: bundlers cannot follow that. Written so that tools that trace files see them.
exports.addon = __dirname + '/lockkeeper.linux-x64-gnu.node';
exports.daemon = __dirname + '/lockkeeper';
