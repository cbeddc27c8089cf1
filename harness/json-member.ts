/** Cuts a member out of JSON text without rewriting it: what a model wrote is passed on as it stands, numbers of any size included (pure). */

/** `text` is JSON text of one object. The text of the member's value; of several with one name the last, as a parser has it. */
export function memberText(text: string, name: string): string | undefined {
  let found: string | undefined;
  let at = skipSpace(text, text.indexOf("{") + 1);
  while (text[at] === '"') {
    const keyEnd = endOfString(text, at);
    const key: unknown = JSON.parse(text.slice(at, keyEnd));
    const start = skipSpace(text, skipSpace(text, keyEnd) + 1);
    const end = endOfValue(text, start);
    if (key === name) found = text.slice(start, end);
    at = skipSpace(text, end);
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
  return found;
}

function skipSpace(text: string, from: number): number {
  let at = from;
  while (at < text.length && " \t\n\r".includes(text[at]!)) at += 1;
  return at;
}

/** `from` is at the opening quote; the position after the closing one. */
function endOfString(text: string, from: number): number {
  let at = from + 1;
  while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
  return at + 1;
}

function endOfValue(text: string, from: number): number {
  if (text[from] === '"') return endOfString(text, from);
  let at = from;
  let depth = 0;
  while (at < text.length) {
    const character = text[at]!;
    if (character === '"') {
      at = endOfString(text, at);
      continue;
    }
    if (character === "{" || character === "[") depth += 1;
    else if (character === "}" || character === "]") {
      if (depth === 0) return at;
      depth -= 1;
    } else if (depth === 0 && (character === "," || " \t\n\r".includes(character))) return at;
    at += 1;
    if (depth === 0 && (character === "}" || character === "]")) return at;
  }
  return at;
}
