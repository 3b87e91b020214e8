import './install.cjs';
