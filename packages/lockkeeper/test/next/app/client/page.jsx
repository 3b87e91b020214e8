'use client';

import { connect } from 'lockkeeper';

export default function Page() {
  return <button onClick={() => connect('ws://127.0.0.1:7420/')}>connect is a {typeof connect}</button>;
}
