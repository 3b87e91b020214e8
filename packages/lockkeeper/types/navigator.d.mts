export * from './navigator.cjs';
