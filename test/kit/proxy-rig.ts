/** The proxy's parts for credentials in the test's own process, connected to a server over a real connection. */
import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Clock, systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import { createLogger } from "../../kit/log.ts";
import { listenInbound } from "../../mcp-proxy/inbound.ts";
import { createParts, type PartsDeps, type ProxyParts } from "../../mcp-proxy/parts.ts";
import { loadSealingKeys, type SealingKeys } from "../../mcp-proxy/sealing-key.ts";
import { ServerLink } from "../../mcp-proxy/server-link.ts";
import { eventually } from "./eventually.ts";

export interface TestProxy extends Pick<ProxyParts, "credentials" | "fetch" | "asks" | "tunnels"> {
  /** Where it listens. */
  readonly proxyUrl: string;
  readonly keys: SealingKeys;
  stop(): Promise<void>;
}

export interface TestProxyOptions {
  /** Of the server. */
  readonly url: string;
  /** An API key of the role proxy. */
  readonly key: string;
  readonly keys: SealingKeys;
  readonly destinations?: "changeable" | "fixed";
  readonly deny?: string[];
  readonly webhooksTo?: "public" | "anywhere";
  /** Certificates of MCP servers to trust besides the system's. */
  readonly upstreamCaFile?: string | undefined;
  /** What harnesses are told; not set: where it listens. */
  readonly proxyUrl?: string;
  /** Names and their addresses, in place of the machine's own file. */
  readonly hostsFile?: string;
  /** The corporate proxy of its network. */
  readonly httpsProxy?: string | undefined;
  /** Tools of the web. */
  readonly web?: { readonly fetch?: boolean; readonly searchUrl?: string; readonly searchKey?: string };
  /** Of what it sends, and of how long that may take; default: the system's. */
  readonly clock?: Clock;
  /** For connections out of sandboxes, in place of the proxy's own. */
  readonly handlers?: PartsDeps["handlers"];
}

/** New keys, newest first. */
export async function newSealingKeys(count = 1): Promise<SealingKeys> {
  const path = join(tmpdir(), `tendon-sealing-${randomBytes(6).toString("hex")}.key`);
  try {
    const keys: SealingKeys[number][] = [];
    for (let made = 0; made < count; made++) {
      keys.push(...(await loadSealingKeys({ text: undefined, path })));
      await rm(path);
    }
    return keys as unknown as SealingKeys;
  } finally {
    await rm(path, { force: true });
  }
}

/** Resolves once the server has taken it in. */
export async function startProxy(options: TestProxyOptions): Promise<TestProxy> {
  const { url, key, keys, destinations = "changeable", deny = [], webhooksTo = "public", handlers } = options;
  const log = createLogger("test", "silent");
  const connection = dial({ url, token: () => key, proxy: {} });
  const inbound = await listenInbound(
    "127.0.0.1",
    0,
    () => true,
    (...request) => parts.ofSessions(...request),
  );
  const { proxyUrl = `http://127.0.0.1:${inbound.port}` } = options;
  const config = {
    HTTPS_PROXY: options.httpsProxy,
    NO_PROXY: undefined,
    TENDON_URL: url,
    TENDON_PROXY_DENY: deny,
    TENDON_PROXY_DESTINATIONS: destinations,
    TENDON_PROXY_UPSTREAM_CA_FILE: options.upstreamCaFile,
    TENDON_PROXY_WEBHOOKS_TO: webhooksTo,
    TENDON_WEB_FETCH: options.web?.fetch ?? true,
    TENDON_WEB_SEARCH_URL: options.web?.searchUrl,
    TENDON_WEB_SEARCH_KEY: options.web?.searchKey,
  };
  const parts = createParts({
    config,
    keys,
    connection,
    port: inbound.port,
    clock: options.clock ?? systemClock,
    log,
    ...(handlers && { handlers }),
    ...(options.hostsFile && { hostsFile: options.hostsFile }),
  });
  const link = new ServerLink({
    connection,
    hello: {
      instanceId: newId("proxy"),
      protocolVersion: 1,
      build: "test",
      url: proxyUrl,
      sealingKeys: keys.map(({ keyId, publicJwk }) => ({ keyId, publicJwk })),
      webTools: { fetch: config.TENDON_WEB_FETCH, search: config.TENDON_WEB_SEARCH_URL !== undefined },
    },
    asks: parts.asks,
    connects: parts.connects,
    webhooks: parts.webhooks,
    onWelcome: (welcome) => parts.welcomed(welcome),
    onTunnel: (ask) => parts.tunnels.asked(ask),
    onForgetSession: (sessionId) => parts.forgetSession(sessionId),
    clock: systemClock,
    log,
  });
  await parts.start();
  await link.start();
  await eventually(() => link.connected);
  return {
    ...parts,
    proxyUrl: `http://127.0.0.1:${inbound.port}`,
    keys,
    async stop() {
      await parts.webhooks.rest();
      await link.stop();
      await inbound.close();
      await parts.stop();
      connection.close();
    },
  };
}
