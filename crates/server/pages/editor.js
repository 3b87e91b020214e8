// One tab of one device may edit the document.
const [status, text, done, take] = ['status', 'text', 'done', 'take'].map((id) => document.getElementById(id));

const show = (what, why = '') => {
  document.title = what;
  status.textContent = what + why;
};

/** Edits until it is done, or the lock is lost. */
async function edit(lock) {
  show('edits', ` (token ${lock.token})`);
  text.value = localStorage.getItem('document') ?? 'A document.';
  text.readOnly = done.disabled = false;
  await new Promise((resolve) => {
    done.onclick = resolve;
    lock.signal.addEventListener('abort', resolve);
  });
  text.readOnly = done.disabled = true;
  // Storage that many devices share would reject a token that is older than the last: then no lost lock does harm.
  if (lock.held) localStorage.setItem('document', text.value);
}

async function request(options) {
  show('waits', ' for the tab that edits');
  try {
    await navigator.locks.request('document', options, edit);
    show('done');
  } catch (error) {
    // Stolen: somebody else took over. Lost: this device was cut off for too long.
    show(error.cause ?? error.name, `: ${error.message}`);
    if (error.cause === 'lost') void request({});
  }
}

take.onclick = () => request({ steal: true });
void request({});
