import { expect, test } from "vitest";
import { bearerChallenge } from "./challenge.ts";

const URL_OF = "https://mcp.example.com/.well-known/oauth-protected-resource";

test.each([
  [`Bearer resource_metadata="${URL_OF}", scope="files:read files:write"`, URL_OF, "files:read files:write"],
  [`bearer scope=read , resource_metadata = "${URL_OF}"`, URL_OF, "read"],
  [`Basic realm="a, Bearer scope=x", Bearer error="invalid_token",scope="a \\"b\\""`, undefined, 'a "b"'],
  [`Negotiate, Bearer scope="one", Digest scope="two", resource_metadata="x"`, undefined, "one"],
  [`Bearer scope="first", scope="second"`, undefined, "first"],
  ["Bearer", undefined, undefined],
  [`Bearer scope="never ends`, undefined, undefined],
])("the challenge %s names metadata and scope", (header, resourceMetadata, scope) => {
  expect(bearerChallenge(header)).toMatchObject({ resourceMetadata, scope });
});

test("an error code is told with the scope that it is about", () => {
  const header = `Bearer error="insufficient_scope", scope="files:write", error_description="more"`;
  expect(bearerChallenge(header)).toMatchObject({ error: "insufficient_scope", scope: "files:write" });
});

test.each([null, "", `Basic realm="x"`, `Digest scope="bearer"`, `Bearer scope="${"x".repeat(9_000)}"`])(
  "%.20s is no challenge for tokens",
  (header) => {
    expect(bearerChallenge(header)).toBeUndefined();
  },
);

test("a long header is read in time that grows with its length alone", () => {
  const header = `Bearer ${'a="\\\\'.repeat(1_500)}`;
  expect(bearerChallenge(header)).toBeDefined();
});
