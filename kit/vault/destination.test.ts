import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { CredentialUseSchema } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import {
  destinationOf,
  gitDestinations,
  hostOf,
  normaliseGitUrl,
  normaliseServerUrl,
} from "./destination.ts";

test.each([
  ["https://a.example.com", "https://a.example.com"],
  ["HTTPS://A.Example.com:443/", "https://a.example.com"],
  ["http://a.example.com:80/mcp///", "http://a.example.com/mcp"],
  ["https://a.example.com:8443/Mcp?x=1", "https://a.example.com:8443/Mcp?x=1"],
  ["https://a.example.com/x/../mcp/%7Ea", "https://a.example.com/mcp/%7Ea"],
  ["https://[2001:DB8::1]/mcp", "https://[2001:db8::1]/mcp"],
  ["http://2130706433/mcp", "http://127.0.0.1/mcp"],
  ["hand-agent://Build/mcp/", "hand-agent://build/mcp"],
  ["hand-agent://build/MCP.corp:443/a/", "hand-agent://build/mcp.corp/a"],
])("the server URL %s is %s", (text, normal) => {
  expect(normaliseServerUrl(text)).toBe(normal);
  expect(normaliseServerUrl(normal)).toBe(normal);
});

test.each([
  "a.example.com/mcp",
  "ftp://a.example.com",
  "https://user@a.example.com",
  "hand-agent+http://build/mcp.corp/a",
  "hand-agent://build/",
  "https://:password@a.example.com",
  "https://a.example.com/#",
  "https://a.example.com/#part",
  "https://a.example.com/with space",
  "https://ä.example.com/",
  "https://",
  "file:///etc/passwd",
])("%s is no server's URL", (text) => {
  expect(normaliseServerUrl(text)).toBeUndefined();
});

test("git URLs are https alone, without .git, and a repository is reached with what it lies below, the longest first", () => {
  expect(normaliseGitUrl("https://Git.example.com/Owner/Repo.git/")).toBe(
    "https://git.example.com/Owner/Repo",
  );
  for (const text of [
    "http://git.example.com/a",
    "ssh://git.example.com/a",
    "https://git.example.com/a?b=c",
  ]) {
    expect(normaliseGitUrl(text)).toBeUndefined();
  }
  expect(gitDestinations("https://git.example.com/owner/repo.git")).toEqual([
    "git https://git.example.com/owner/repo",
    "git https://git.example.com/owner",
    "git https://git.example.com",
  ]);
  expect(gitDestinations("https://git.example.com/")).toBeUndefined();
  expect(gitDestinations(`https://git.example.com/${"a/".repeat(17)}`)).toBeUndefined();
});

test("kinds that go to MCP servers share their destinations, others have their own", () => {
  const use = (kind: NonNullable<Parameters<typeof create<typeof CredentialUseSchema>>[1]>["kind"]) =>
    destinationOf(create(CredentialUseSchema, { kind: kind! }));
  const serverUrl = "https://a.example.com/";
  const bearer = use({ case: "staticBearer", value: { serverUrl } });
  expect(use({ case: "header", value: { serverUrl, headerName: "X" } })).toBe(bearer);
  expect(use({ case: "oauth", value: { serverUrl } })).toBe(bearer);
  expect(use({ case: "git", value: { url: serverUrl } })).not.toBe(bearer);
  expect(use({ case: "environmentVariable", value: { name: "A" } })).toBe("variable A");
  expect(use({ case: "staticBearer", value: { serverUrl: "none" } })).toBeUndefined();
  expect([hostOf("https://user:secret@a.example.com:8443/x"), hostOf("none")]).toEqual([
    "a.example.com:8443",
    "",
  ]);
});
