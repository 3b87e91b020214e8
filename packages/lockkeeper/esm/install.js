import '../dist/cjs/install.cjs';
