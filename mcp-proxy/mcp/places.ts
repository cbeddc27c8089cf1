/** How much one session may have open at one MCP server: what hangs there takes no room from others. */
import { McpRefusal } from "./refusal.ts";

const MAX_REQUESTS = 64;
const MAX_STREAMS = 8;

export class Places {
  private readonly taken = new Map<string, number>();

  /** The returned function gives the place back. Throws where all are taken. */
  take(sessionId: string, serverName: string, isStream: boolean): () => void {
    const key = `${isStream ? "stream" : "request"} ${sessionId} ${serverName}`;
    const count = this.taken.get(key) ?? 0;
    const most = isStream ? MAX_STREAMS : MAX_REQUESTS;
    if (count >= most) {
      const what = isStream ? "streams" : "requests";
      throw new McpRefusal(
        429,
        "rate_limit_error",
        `the session has ${most} ${what} open at MCP server "${serverName}"`,
      );
    }
    this.taken.set(key, count + 1);
    return () => {
      const left = (this.taken.get(key) ?? 1) - 1;
      if (left === 0) this.taken.delete(key);
      else this.taken.set(key, left);
    };
  }
}
