export * from './proposals-of.cjs';
