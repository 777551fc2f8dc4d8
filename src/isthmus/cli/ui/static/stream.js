// The server's view, followed: a first event has all of it, later ones what changed. Nothing here draws.

const TOKEN = "isthmus-token";
const RETRY = 2000; // ms

// The token comes in the fragment of the URL, once; it is kept for this tab and leaves the address bar.
export function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const token = fragment.get("token");
  if (token) {
    sessionStorage.setItem(TOKEN, token);
    fragment.delete("token");
    history.replaceState(null, "", `#${fragment}`);
  }
  return sessionStorage.getItem(TOKEN) ?? "";
}

export function setToken(text) {
  const token = /token=([A-Za-z0-9_-]+)/.exec(text)?.[1] ?? text.trim();
  sessionStorage.setItem(TOKEN, token);
}

// Characters that would not show, or would turn the direction of what follows, as escapes: others write these texts.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}\p{Cn}\p{Cs}]/gu;

export function plain(text) {
  return String(text).replace(HIDDEN, (each) => (each === "\n" ? each : `\\u{${each.codePointAt(0).toString(16)}}`));
}

const ESCAPED = /\\[ubfrt]/; // in JSON: what may become such a character

// Most answers have no such character, and looking at each of their texts would cost more than all else.
export function decode(text) {
  if (text.search(HIDDEN) < 0 && !ESCAPED.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value) => (typeof value === "string" ? plain(value) : value));
}

export async function ask(path, query = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` };
  const response = await fetch(`/api/${path}?${new URLSearchParams(query)}`, { headers });
  const answer = decode(await response.text());
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

export const KINDS = ["clusters", "services", "edges", "processes", "problems", "summary"];

// A view of one moment; a new one after each event, which shares what did not change.
export function emptyView() {
  return { now: 0, began: 0, ...Object.fromEntries(KINDS.map((kind) => [kind, new Map()])) };
}

export function apply(view, event) {
  const next = { ...view, now: event.now, began: event.began };
  for (const kind of KINDS) {
    const put = event.put?.[kind];
    const gone = event.gone?.[kind];
    if (!put && !gone) continue;
    next[kind] = new Map(view[kind]);
    for (const id of gone ?? []) next[kind].delete(id);
    for (const [id, entity] of Object.entries(put ?? {})) next[kind].set(id, { ...entity, id });
  }
  return next;
}

// Call onView with each view and onState with "" while connected, else with why not; for ever.
export async function follow(onView, onState) {
  for (;;) {
    try {
      await read(onView, onState);
      onState("the server has ended");
    } catch (error) {
      onState(error.message === "refused" ? "refused" : "the server does not answer");
      if (error.message === "refused") return;
    }
    await new Promise((done) => setTimeout(done, RETRY));
  }
}

async function read(onView, onState) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` };
  const response = await fetch("/api/stream", { headers });
  if (response.status === 401) throw new Error("refused");
  if (!response.ok) throw new Error(decode(await response.text()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let view = emptyView();
  let rest = "";
  for (;;) {
    const { value, done } = await within(reader.read(), 15000);
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) view = apply(view, decode(event.slice("data: ".length)));
    if (events.length) {
      onState("");
      onView(view);
    }
  }
}

function within(promise, milliseconds) {
  return Promise.race([
    promise,
    new Promise((_, fail) => setTimeout(() => fail(new Error("silent")), milliseconds)),
  ]);
}
