// Keeps a page up to date: the server sends the part that changes as HTML, and only what differs is changed in the document,
// so that the focus, a selection and the scroll position stay.
'use strict';

(() => {
  const live = document.getElementById('live');
  const connection = document.getElementById('connection');
  const form = document.getElementById('search');
  let events = document.body.dataset.events;
  let source = null;

  const say = (state, text) => {
    if (!connection || connection.textContent === text) return;
    connection.textContent = text;
    connection.className = state;
  };

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute('data-key') : null);

  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  // morph makes node like wanted.
  const morph = (node, wanted) => {
    if (node.nodeType !== Node.ELEMENT_NODE) {
      if (node.nodeValue !== wanted.nodeValue) node.nodeValue = wanted.nodeValue;
      return;
    }
    if (node.isEqualNode(wanted)) return;
    for (const { name } of [...node.attributes]) if (!wanted.hasAttribute(name)) node.removeAttribute(name);
    for (const { name, value } of wanted.attributes) if (node.getAttribute(name) !== value) node.setAttribute(name, value);
    children(node, wanted);
  };

  // children makes the children of node like those of wanted. Elements with a key are found again wherever they were.
  const children = (node, wanted) => {
    const keys = new Set([...wanted.children].map(keyOf));
    for (const child of [...node.children]) if (keyOf(child) && !keys.has(keyOf(child))) child.remove();
    const keyed = new Map([...node.children].map((child) => [keyOf(child), child]));
    let next = node.firstChild;
    for (const want of [...wanted.childNodes]) {
      const have = keyOf(want) ? keyed.get(keyOf(want)) : next;
      if (!have || !alike(have, want)) {
        node.insertBefore(want, next);
        continue;
      }
      if (have === next) next = next.nextSibling;
      else node.insertBefore(have, next);
      morph(have, want);
    }
    while (next) {
      const rest = next.nextSibling;
      next.remove();
      next = rest;
    }
  };

  // strip removes the white space between elements with keys.
  const strip = (root) => {
    for (const parent of [root, ...root.querySelectorAll('tbody')]) {
      for (const child of [...parent.childNodes]) if (child.nodeType === Node.TEXT_NODE) child.remove();
    }
  };

  const show = (html) => {
    const t = document.createElement('template');
    t.innerHTML = html;
    strip(t.content);
    const focused = document.activeElement;
    children(live, t.content);
    if (focused.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true }); // it was moved
  };

  const open = () => {
    if (source || !live || !events || document.hidden) return;
    source = new EventSource(events);
    source.onopen = () => say('on', 'Live');
    source.onmessage = (e) => show(e.data);
    source.onerror = () => say('off', source && source.readyState === EventSource.CLOSED ? 'Not updated; reload the page' : 'Disconnected; trying again');
  };

  const close = () => {
    if (source) source.close();
    source = null;
  };

  // A hidden page needs no updates, and the server need not look for it.
  document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
  addEventListener('pagehide', close);
  addEventListener('pageshow', open);

  if (form) {
    form.classList.add('scripted');
    let timer = 0;
    const search = () => {
      const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ''));
      if (query.get('sort') === 'waiters') query.delete('sort');
      history.replaceState(null, '', './' + (query.size ? '?' + query : ''));
      query.set('of', 'list');
      events = 'events?' + query;
      close();
      open();
    };
    form.addEventListener('input', () => {
      clearTimeout(timer);
      timer = setTimeout(search, 250);
    });
    form.addEventListener('submit', (e) => {
      e.preventDefault();
      clearTimeout(timer);
      search();
    });
  }

  document.addEventListener('keydown', (e) => {
    const typing = e.target.matches('input, select, textarea');
    if (e.key === '/' && !typing && !e.ctrlKey && !e.metaKey && !e.altKey && form) {
      e.preventDefault();
      form.elements.q.select();
    }
  });

  if (live) strip(live);
  open();
})();
