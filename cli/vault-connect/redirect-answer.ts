/** What an authorization server has sent a browser back with (RFC 6749, 4.1.2; RFC 9207). */

export interface RedirectAnswer {
  readonly state: string;
  /** Empty when there is an error. */
  readonly code: string;
  readonly iss: string;
  /** Empty when there is a code. */
  readonly error: string;
}

const MAX_CHARS = 32_768;

/** Undefined for what is no answer: another place, a parameter that comes twice, or neither code nor error. */
export function redirectAnswerOf(text: string, redirectUri: string): RedirectAnswer | undefined {
  if (text.length > MAX_CHARS || !URL.canParse(text)) return undefined;
  const url = new URL(text);
  if (`${url.origin}${url.pathname}` !== redirectUri) return undefined;
  const { searchParams } = url;
  const names = ["state", "code", "iss", "error"];
  if (names.some((name) => searchParams.getAll(name).length > 1)) return undefined;
  const [state, code, iss, error] = names.map((name) => searchParams.get(name) ?? "") as [
    string,
    string,
    string,
    string,
  ];
  return state !== "" && (code === "") !== (error === "") ? { state, code, iss, error } : undefined;
}
