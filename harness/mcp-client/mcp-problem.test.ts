import { expect, test } from "vitest";
import { originOfProblem, problemOf } from "./mcp-problem.ts";

test("an answer in the proxy's words is told as the proxy says it, and any other as the server's", () => {
  const said = { error: { type: "rate_limit_error", message: "too many" } };
  const own = problemOf(429, JSON.stringify(said));
  expect(own).toMatchObject({ type: "rate_limit_error", message: "too many", mayPass: true });
  expect(originOfProblem(own)).toEqual({ part: "proxy", reason: "NOT_SENT" });
  for (const body of ["", "<html>down</html>", '{"jsonrpc":"2.0"}']) {
    const foreign = problemOf(503, body);
    const message = "the MCP server, or something on the way to it, answered 503";
    expect(foreign).toMatchObject({ type: "http_503", message, mayPass: false });
    expect(originOfProblem(foreign)).toEqual({ part: "upstream", reason: "MCP_CONNECTION_FAILED" });
  }
});
