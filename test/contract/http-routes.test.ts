import { readFile } from "node:fs/promises";
import { expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { RouteTable } from "../../server/http/api/route-table.ts";
import { apiRoutes } from "../../server/http/api/routes.ts";

test("docs/http-api.md has a row for every route of the HTTP API, and none that is not there", async () => {
  const text = await readFile(new URL("../../docs/http-api.md", import.meta.url), "utf8");
  const rows = [...text.matchAll(/^\| (GET|POST|DELETE) \| `([^`]+)` \| \S/gm)].map(
    ([, method, path]) => `${method} ${path}`,
  );
  const routes = apiRoutes(systemClock).map(({ method, path }) => `${method} ${path}`);
  expect(rows.toSorted()).toEqual(routes.toSorted());
  expect(new RouteTable(apiRoutes(systemClock)).find("GET", "/v1/agents").kind).toBe("route");
});
