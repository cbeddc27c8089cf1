import { expect, test } from "vitest";
import { decodePageToken, encodePageToken } from "./page-token.ts";

const query = ["agents", "wrkspc_1", false];
const cursor = ["2026-01-02 03:04:05.678901+00", "agent_1"];

test("a token gives back its cursor to the query that it belongs to", () => {
  expect(decodePageToken(query, encodePageToken(query, cursor), 2)).toEqual(cursor);
});

test("no cursor is the empty token, and the empty token is the first page", () => {
  expect(encodePageToken(query, undefined)).toBe("");
  expect(decodePageToken(query, "", 2)).toBeUndefined();
});

test("a token fits no other query, and an absent filter is not the empty one", () => {
  const token = encodePageToken(query, cursor);
  for (const other of [
    ["agents", "wrkspc_2", false],
    ["agents", "wrkspc_1", true],
    ["environments", "wrkspc_1", false],
  ]) {
    expect(() => decodePageToken(other, token, 2)).toThrow(/page_token/);
  }
  const absent = encodePageToken(["audit", undefined], cursor);
  expect(() => decodePageToken(["audit", ""], absent, 2)).toThrow(/page_token/);
});

test("every garbled token is INVALID_PAGE_TOKEN and nothing else", () => {
  const token = encodePageToken(query, cursor);
  const garbled = ["x", "é".repeat(40), token.slice(1), token.slice(0, -1), `${token}A`, token.toLowerCase()];
  const shorter = encodePageToken(query, ["only one"]);
  for (const text of [...garbled, shorter]) {
    expect(() => decodePageToken(query, text, 2)).toThrow(
      expect.objectContaining({ reason: "INVALID_PAGE_TOKEN" }),
    );
  }
});

test("a token stays below the contract's 512 characters for the longest cursor", () => {
  const longest = ["2026-01-02 03:04:05.678901+00:00", `agent_${"x".repeat(64)}`];
  expect(encodePageToken(query, longest).length).toBeLessThan(512);
});
