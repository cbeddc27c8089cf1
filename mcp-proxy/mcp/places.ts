/**
 * How much one session may have open, at one MCP server and at all: what hangs there takes no room from others, and names of
 * servers that there are not make no more of it.
 */
import { McpRefusal } from "./refusal.ts";

const MAX_REQUESTS = 64;
const MAX_STREAMS = 8;
/** Of a session in all: each may hold a message in memory before anybody knows whether its server is one of the agent's. */
const MAX_OF_SESSION = 256;

export class Places {
  private readonly taken = new Map<string, number>();

  /** The returned function gives the place back. Throws where all are taken. */
  take(sessionId: string, serverName: string, isStream: boolean): () => void {
    const what = isStream ? "streams" : "requests";
    const most = isStream ? MAX_STREAMS : MAX_REQUESTS;
    const leaveServer = this.count(
      JSON.stringify([what, sessionId, serverName]),
      most,
      `the session has ${most} ${what} open at MCP server "${serverName}"`,
    );
    try {
      const problem = `the session has ${MAX_OF_SESSION} requests and streams open`;
      const leaveSession = this.count(sessionId, MAX_OF_SESSION, problem);
      return () => {
        leaveServer();
        leaveSession();
      };
    } catch (error) {
      leaveServer();
      throw error;
    }
  }

  private count(key: string, most: number, problem: string): () => void {
    const count = this.taken.get(key) ?? 0;
    if (count >= most) throw new McpRefusal(429, "rate_limit_error", problem);
    this.taken.set(key, count + 1);
    return () => {
      const left = (this.taken.get(key) ?? 1) - 1;
      if (left === 0) this.taken.delete(key);
      else this.taken.set(key, left);
    };
  }
}
