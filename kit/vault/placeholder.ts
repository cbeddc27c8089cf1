/**
 * What stands in a sandbox in place of a variable's value. It says the variable's name, so that a new value, or another
 * vault's variable of that name, counts without a new hand, and ends in digits that follow from the name: text that only
 * looks like one is left alone. It holds nothing secret, and no character that headers, URLs, JSON or shells write otherwise.
 */
import { createHash } from "node:crypto";

const START = "tendon-placeholder-";
const DIGITS = 12;
/** Names are 128 characters at most. */
const PATTERN = /tendon-placeholder-([A-Za-z_][A-Za-z0-9_]{0,127})-([0-9a-f]{12})/g;

export function placeholderOf(name: string): string {
  return `${START}${name}-${digitsOf(name)}`;
}

/** Names of the variables whose placeholders stand in the text, each once. */
export function placeholdersIn(text: string): string[] {
  if (!text.includes(START)) return [];
  const names = [...text.matchAll(PATTERN)].flatMap(([, name = "", digits]) =>
    digits === digitsOf(name) ? [name] : [],
  );
  return [...new Set(names)];
}

/** The text with each placeholder replaced whose variable has a value here; others stay. */
export function replacePlaceholders(text: string, valueFor: (name: string) => string | undefined): string {
  if (!text.includes(START)) return text;
  return text.replace(PATTERN, (whole: string, name: string, digits: string) =>
    digits === digitsOf(name) ? (valueFor(name) ?? whole) : whole,
  );
}

function digitsOf(name: string): string {
  return createHash("sha256").update(`tendon variable ${name}`).digest("hex").slice(0, DIGITS);
}
