/** What the other areas may ask of the part that knows proxies. */
export interface ProxyDirectory {
  /** Where harnesses reach one of the connected proxies; empty while none is connected. Answered from memory. */
  anyUrl(): string;
  /** A session ended: every proxy closes what is open for it. Lossy; a proxy that misses it lets its own time limits decide. */
  forgetSession(sessionId: string): void;
}
