/** Who asks the proxy for something of a session: whoever shows a token of that very session. */
import type { IncomingMessage } from "node:http";
import { McpRefusal } from "./mcp/refusal.ts";
import type { SessionCaller, SessionTokenKeys } from "./session-token.ts";

/** Throws an McpRefusal, or as SessionTokenKeys does. */
export async function authenticate(
  keys: Pick<SessionTokenKeys, "verify">,
  request: IncomingMessage,
  sessionId: string,
): Promise<SessionCaller> {
  const token = /^Bearer (\S+)$/i.exec(request.headers.authorization ?? "")?.[1];
  if (token === undefined)
    throw new McpRefusal(401, "authentication_error", "a session token is needed: Authorization: Bearer …");
  const caller = await keys.verify(token);
  if (caller.sessionId !== sessionId)
    throw new McpRefusal(403, "permission_error", "the token is another session's");
  return caller;
}
