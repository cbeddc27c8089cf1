import { expect, test } from "vitest";
import { createLogger } from "../../kit/log.ts";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { ProxyConnection } from "./proxy-connection.ts";
import { ProxyConnections } from "./proxy-connections.ts";

const URL = "http://127.0.0.1:7401";

function connections(clock: FakeClock): ProxyConnections {
  return new ProxyConnections({
    replicas: {
      proxyUrls: async () => ({ proxies: [], peers: [] }),
      sealingKeys: async () => ({ connected: [], published: [] }),
    },
    peers: () => ({ askProxy: () => Promise.reject(new Error("there is none")) }),
    sessionTokens: { publicKeys: async () => "" },
    replicaId: "rplc_1",
    clock,
    log: createLogger("server", "silent"),
  });
}

const proxy = (instanceId: string, url: string, clock: FakeClock) =>
  new ProxyConnection(
    { instanceId, url, sealingKeys: [], webTools: { fetch: true, search: false } } as never,
    clock.monotonicMs(),
  );

test("a proxy that went is told to harnesses for a minute, unless there is another", async () => {
  const clock = new FakeClock();
  const known = connections(clock);
  const first = proxy("a", URL, clock);
  await known.add(first);
  known.remove(first);
  await clock.advance(59_000);
  expect(known.any()).toEqual({ url: URL, web: { fetch: true, search: false } });
  expect(known.isAnyConnected()).toBe(false);
  await clock.advance(2_000);
  expect(known.any().url).toBe("");
  const second = proxy("b", `${URL}0`, clock);
  await known.add(second);
  expect(known.any().url).toBe(`${URL}0`);
});
