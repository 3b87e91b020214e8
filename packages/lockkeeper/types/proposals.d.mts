export * from './proposals.cjs';
