// One tab of one device is primary. It holds its lock until it ends.
const [status, count] = ['status', 'count'].map((id) => document.getElementById(id));

const show = (what, why = '') => {
  document.title = what;
  status.textContent = what + why;
};

/** Stands for what only one tab is to do. */
function synchronize() {
  count.value = Number(count.value) + 1;
}

async function primary(lock) {
  show('primary');
  synchronize();
  const timer = setInterval(synchronize, 1000);
  // It never releases the lock by itself.
  await new Promise((resolve) => lock.signal.addEventListener('abort', resolve));
  clearInterval(timer);
}

async function run() {
  for (;;) {
    show('secondary', ': another tab or device is primary');
    try {
      await navigator.locks.request('primary', primary);
    } catch (error) {
      show('cut off', `: ${error.message}`);
      // What is not about this lock, as a refusal, will not get better.
      if (error.name !== 'AbortError') return;
    }
  }
}

void run();
