export {
  ExplicitLock,
  Flag,
  forceRelease,
  Lock,
  proposals,
  requestExplicitLock,
  requestFlag,
  requestLock,
  requestScopedLock,
} from '../dist/cjs/proposals.cjs';
