import { expect, test } from "vitest";
import { normaliseHandAgentUrl, parseHandAgentUrl } from "./hand-agent-url.ts";

test.each([
  ["hand-agent://lab/mcp.corp/v1/mcp?x=1", "lab", "mcp.corp", 443, "https://mcp.corp/v1/mcp?x=1"],
  ["hand-agent://lab/mcp.corp:8443", "lab", "mcp.corp", 8443, "https://mcp.corp:8443/"],
  ["hand-agent+http://lab/10.1.2.3:8080/mcp", "lab", "10.1.2.3", 8080, "http://10.1.2.3:8080/mcp"],
  ["hand-agent://Lab-2/MCP.corp/Path", "lab-2", "mcp.corp", 443, "https://mcp.corp/Path"],
  ["hand-agent://lab/[fd00::1]:9/x", "lab", "[fd00::1]", 9, "https://[fd00::1]:9/x"],
])("%s names pool, host and port, and what the server is called there", (text, pool, host, port, url) => {
  expect(parseHandAgentUrl(text)).toMatchObject({ pool, host, port, url, isSecure: url.startsWith("https") });
});

test.each([
  "hand-agent:///mcp.corp/x",
  "hand-agent://lab",
  "hand-agent://lab/",
  "hand-agent://lab//mcp.corp/x",
  "hand-agent://lab:7/mcp.corp/x",
  "hand-agent://user@lab/mcp.corp",
  "hand-agent://lab/user@mcp.corp/x",
  "hand-agent://lab/mcp.corp:0/x",
  "hand-agent://lab/mcp.corp:70000/x",
  "hand-agent://lab/2130706433/x",
  "hand-agent://lab/%6dcp.corp/x",
  "hand-agent://lab/../x y",
  "hand-agent://lab/mcp.corp/x#f",
  "https://mcp.corp/x",
])("%s is none", (text) => {
  expect(parseHandAgentUrl(text)).toBeUndefined();
});

test("spellings of one URL are one text, and another port, path or scheme is another", () => {
  const same = ["hand-agent://lab/mcp.corp/a", "HAND-AGENT://LAB/Mcp.Corp:443/a/"].map(normaliseHandAgentUrl);
  expect(new Set(same)).toEqual(new Set(["hand-agent://lab/mcp.corp/a"]));
  expect(normaliseHandAgentUrl("hand-agent://lab/mcp.corp:444/a")).toBe("hand-agent://lab/mcp.corp:444/a");
  expect(normaliseHandAgentUrl("hand-agent+http://lab/mcp.corp/")).toBe("hand-agent+http://lab/mcp.corp");
});
