'use client';

import { useState } from 'react';
import { connect } from 'lockkeeper';

/** Takes a lock of the daemon that the page's address names, and keeps it. */
export default function Page() {
  const [said, say] = useState('');
  const take = async () => {
    say('asks');
    const locks = await connect(location.hash.slice(1));
    await locks.acquire('document 7');
    say('held');
  };
  return (
    <button onClick={() => said || take().catch(({ message }) => say(message))}>
      connect is a {typeof connect}
      {said && `: ${said}`}
    </button>
  );
}
