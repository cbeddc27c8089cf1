import { expect, test } from "vitest";
import { route } from "./api-route.ts";
import { RouteTable } from "./route-table.ts";

const answer = async () => ({});
const table = new RouteTable([
  route("GET", "/v1/things/{thing_id}", answer),
  route("POST", "/v1/things/{thing_id}", answer),
  route("GET", "/v1/things/latest", answer),
  route("GET", "/v1/things/{thing_id}/parts/{part_id}", answer),
]);

const found = (method: string, path: string) => {
  const match = table.find(method, path);
  return match.kind === "route" ? [match.route.path, match.params] : match;
};

test("names of a path match one segment each, decoded", () => {
  expect(found("GET", "/v1/things/a%20b")).toEqual(["/v1/things/{thing_id}", { thing_id: "a b" }]);
  expect(found("GET", "/v1/things/a/parts/b")).toEqual([
    "/v1/things/{thing_id}/parts/{part_id}",
    { thing_id: "a", part_id: "b" },
  ]);
});

test("a fixed segment goes before a name", () => {
  expect(found("GET", "/v1/things/latest")).toEqual(["/v1/things/latest", {}]);
  expect(found("POST", "/v1/things/latest")).toEqual(["/v1/things/{thing_id}", { thing_id: "latest" }]);
});

test("what is not there, and what is there with another method, are told apart", () => {
  expect(found("DELETE", "/v1/things/a")).toEqual({ kind: "method", allowed: ["GET", "POST"] });
  for (const path of ["/v1/things", "/v1/things/", "/v1/things/a/", "/v1/things/a/b", "/v1/things/%E0%A4"])
    expect(found("GET", path)).toEqual({ kind: "none" });
});

test("the same route twice is a mistake that shows at once", () => {
  const twice = [route("GET", "/v1/{a}", answer), route("GET", "/v1/{b}", answer)];
  expect(() => new RouteTable(twice)).toThrow("GET /v1/{b} is there twice");
});
