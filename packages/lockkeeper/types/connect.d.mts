export * from './connect.cjs';
