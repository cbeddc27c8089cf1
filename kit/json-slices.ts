/**
 * Cuts JSON text into its parts without rewriting them: what somebody wrote is passed on as it stands, numbers of any size and
 * the order of keys included (pure). Every text must have been parsed before: of text that is not JSON the result means nothing.
 */

export interface Member {
  readonly name: string;
  /** Text of the value. */
  readonly text: string;
}

/** `text` is JSON text of one object. Members in the order in which they stand; a name may come twice. */
export function membersOf(text: string): Member[] {
  const members: Member[] = [];
  let at = skipSpace(text, text.indexOf("{") + 1);
  while (text[at] === '"') {
    const keyEnd = endOfString(text, at);
    const name = JSON.parse(text.slice(at, keyEnd)) as string;
    const start = skipSpace(text, skipSpace(text, keyEnd) + 1);
    const end = endOfValue(text, start);
    members.push({ name, text: text.slice(start, end) });
    at = afterComma(text, end);
  }
  return members;
}

/** `text` is JSON text of one list. */
export function elementsOf(text: string): string[] {
  const elements: string[] = [];
  let at = skipSpace(text, text.indexOf("[") + 1);
  while (at < text.length && text[at] !== "]") {
    const end = endOfValue(text, at);
    elements.push(text.slice(at, end));
    at = afterComma(text, end);
  }
  return elements;
}

/** `text` is JSON text of one object. Text of the member's value; of several with one name the last, as a parser has it. */
export function memberText(text: string, name: string): string | undefined {
  return membersOf(text).findLast((member) => member.name === name)?.text;
}

/** An object of these members. */
export function objectText(members: readonly Member[]): string {
  return `{${members.map(({ name, text }) => `${JSON.stringify(name)}:${text}`).join(",")}}`;
}

function afterComma(text: string, from: number): number {
  const at = skipSpace(text, from);
  return text[at] === "," ? skipSpace(text, at + 1) : at;
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
