/** Puts together what the proxy does with credentials. */
import { readFileSync } from "node:fs";
import { rootCertificates } from "node:tls";
import type { Clock } from "../kit/clock.ts";
import type { Connection } from "../kit/dial/dial.ts";
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import { isHandAgentUrl } from "../kit/network/hand-agent-url.ts";
import { NameResolver } from "../kit/network/name-resolver.ts";
import { ownAddresses } from "../kit/network/own-addresses.ts";
import { StartupError } from "../kit/program.ts";
import { NO_TRACING, type Tracing } from "../kit/trace.ts";
import { CredentialService } from "../proto/gen/tendon/v1/credential_service_pb.js";
import { ProxyService, type ProxyWelcome } from "../proto/gen/tendon/v1/proxy_service_pb.js";
import type { ProxyConfig } from "./config.ts";
import { CredentialAsks } from "./credentials/asks.ts";
import { Connects } from "./credentials/connect/connects.ts";
import { Credentials } from "./credentials/credentials.ts";
import { Refresher } from "./credentials/oauth/refresher.ts";
import { Opener } from "./credentials/opener.ts";
import { UseJournal } from "./credentials/use-journal.ts";
import { Authorities } from "./egress/authorities.ts";
import { createEgress } from "./egress/egress.ts";
import { LeafCertificates } from "./egress/leaf-certificates.ts";
import { createGit } from "./git/git.ts";
import { createLfsActions } from "./git/lfs-actions.ts";
import type { SessionHandler } from "./inbound.ts";
import { createMcp } from "./mcp/mcp.ts";
import { createCheck, createFetch, type OutboundFetch } from "./outbound/fetch.ts";
import { Outbound, type OutboundOptions } from "./outbound/outbound.ts";
import { OwnListeners } from "./outbound/own-listeners.ts";
import { PrivateNetworks } from "./outbound/private-networks.ts";
import { OutboundRefusal } from "./outbound/refusal.ts";
import { OutboundRules, type OutboundRulesOptions } from "./outbound/rules.ts";
import type { SealingKeys } from "./sealing-key.ts";
import { SessionTokenKeys } from "./session-token.ts";
import { Tunnels, type TunnelsDeps } from "./tunnels/tunnels.ts";
import { createWeb } from "./web/web.ts";
import { Webhooks } from "./webhooks/webhooks.ts";

export interface PartsDeps {
  readonly config: Pick<
    ProxyConfig,
    | "HTTPS_PROXY"
    | "NO_PROXY"
    | "TENDON_URL"
    | "TENDON_PROXY_DENY"
    | "TENDON_PROXY_DESTINATIONS"
    | "TENDON_PROXY_UPSTREAM_CA_FILE"
    | "TENDON_PROXY_WEBHOOKS_TO"
    | "TENDON_WEB_FETCH"
    | "TENDON_WEB_SEARCH_URL"
    | "TENDON_WEB_SEARCH_KEY"
  >;
  readonly keys: SealingKeys;
  readonly connection: Connection;
  /** Where this program listens; undefined for none. */
  readonly port: number | undefined;
  /** Takes connections out of sandboxes in place of the proxy's own handler of that kind. */
  readonly handlers?: TunnelsDeps["handlers"];
  /** Names that are known without a name server; default: the machine's own file. */
  readonly hostsFile?: string;
  readonly clock: Clock;
  readonly log: Logger;
  /** Default: no spans. */
  readonly tracing?: Tracing;
}

export interface ProxyParts {
  /** Credentials of sessions, for whatever sends requests of theirs. */
  readonly credentials: Credentials;
  readonly asks: CredentialAsks;
  readonly connects: Connects;
  /** Connections out of sandboxes. */
  readonly tunnels: Tunnels;
  /** Programs elsewhere that are told what happened. */
  readonly webhooks: Webhooks;
  /** MCP servers of sessions, and calls of web tools, by the request's path. */
  readonly ofSessions: SessionHandler;
  /** The way out by the rules: all of the platform's own HTTP goes this way. */
  readonly fetch: OutboundFetch;
  start(): Promise<void>;
  stop(): Promise<void>;
  welcomed(welcome: ProxyWelcome): void;
  /** Whether the keys of session tokens are known. */
  isWelcomed(): boolean;
  forgetSession(sessionId: string): void;
}

export function createParts(deps: PartsDeps): ProxyParts {
  const { config, keys, connection, port, clock, log, tracing = NO_TRACING } = deps;
  const resolver = new NameResolver({ clock, ...(deps.hostsFile && { hostsFile: deps.hostsFile }) });
  const listeners = new OwnListeners(resolver, [config.TENDON_URL], clock);
  if (port !== undefined) listeners.listensAt(port);
  const ca = trusted(config.TENDON_PROXY_UPSTREAM_CA_FILE);
  const ways = waysOut(config, { resolver, clock, ca, ownListeners: () => listeners.all() });
  const { outbound } = ways;
  const proxyClient = connection.client(ProxyService);
  const privateNetworks = new PrivateNetworks({ client: proxyClient, clock, ca });
  const fetch = fetchEverywhere(createFetch(outbound), privateNetworks);
  const client = connection.client(CredentialService);
  const opener = new Opener(keys, clock);
  const journal = new UseJournal({ credentials: client, clock, log });
  const refresher = new Refresher({ credentials: client, opener, journal, fetch, clock, log, tracing });
  const destinationsAreFixed = config.TENDON_PROXY_DESTINATIONS === "fixed";
  const credentials = new Credentials({ credentials: client, opener, refresher, journal, clock });
  // A part that takes connections out of sandboxes stands here, by its kind.
  const git = createGit({ credentials, outbound, actions: createLfsActions(keys), clock, log });
  const authorities = new Authorities(keys);
  const certificates = new LeafCertificates(authorities, clock);
  const egress = createEgress({ credentials, certificates, outbound, privateNetworks, clock, log });
  const handlers: TunnelsDeps["handlers"] = { git, egress, ...deps.handlers };
  const tokenKeys = new SessionTokenKeys(clock);
  const mcp = createMcp({ client, credentials, fetch, keys: tokenKeys, clock, log, tracing });
  const web = createWeb({
    ...{ client, fetch, keys: tokenKeys, clock, log, tracing },
    fetchPublic: config.TENDON_WEB_FETCH ? createFetch(ways.web) : undefined,
    provider: searchProvider(config),
  });
  const tunnels = new Tunnels({ client: proxyClient, handlers, log });
  const { hooks } = ways;
  const webhooks = new Webhooks({
    ...{ opener, clock, log },
    fetch: createFetch(hooks),
    check: createCheck(hooks),
  });
  return {
    fetch,
    tunnels,
    webhooks,
    ofSessions: (request, response, path) =>
      (path.startsWith("/web/") ? web : mcp).handle(request, response, path),
    credentials,
    asks: new CredentialAsks({
      ...{ opener, journal, refresher, authorities, fetch },
      ...{ destinationsAreFixed, clock, log },
    }),
    connects: new Connects({ keys, opener, fetch, clock, log }),
    async start() {
      await listeners.add([]);
      await journal.start();
    },
    async stop() {
      tunnels.stop();
      mcp.stop();
      await journal.stop();
      opener.stop();
      listeners.stop();
      for (const way of Object.values(ways)) way.close();
      privateNetworks.close();
    },
    welcomed({ ownUrls, sealingKeyId, sessionTokenKeys }) {
      opener.sealTo(sealingKeyId);
      tokenKeys.replace(sessionTokenKeys).catch((error: unknown) => {
        log.error({ error: messageOf(error) }, "the keys of session tokens cannot be read");
      });
      void listeners.add(ownUrls.filter((url) => URL.canParse(url)));
    },
    isWelcomed: () => tokenKeys.areKnown,
    forgetSession(sessionId) {
      tunnels.forgetSession(sessionId);
      mcp.forgetSession(sessionId);
      web.forgetSession(sessionId);
      privateNetworks.forgetSession(sessionId);
    },
  };
}

interface Network extends Pick<OutboundOptions, "resolver" | "clock" | "ca"> {
  readonly ownListeners: OutboundRulesOptions["ownListeners"];
}

/** By who names where they lead: the installation and its agents, clients of a workspace, models. */
function waysOut(config: PartsDeps["config"], { ownListeners, ...network }: Network) {
  const proxy = { httpsProxy: config.HTTPS_PROXY, noProxy: config.NO_PROXY };
  const limits = { deny: config.TENDON_PROXY_DENY ?? [], ownAddresses, ownListeners };
  const way = (more: Pick<OutboundRulesOptions, "privateAllowedBy" | "publicOnly">) =>
    new Outbound({ rules: new OutboundRules({ ...limits, ...more }), proxy, ...network });
  const isPublic = config.TENDON_PROXY_WEBHOOKS_TO === "public";
  return {
    outbound: way({}),
    hooks: way({ privateAllowedBy: isPublic ? "TENDON_PROXY_WEBHOOKS_TO" : undefined }),
    web: way({ publicOnly: true }),
  };
}

/** One function for all that the proxy asks: the URL, or a pool beside it, says whether it goes out from here or through a hand agent. */
function fetchEverywhere(fromHere: OutboundFetch, privateNetworks: PrivateNetworks): OutboundFetch {
  return async (url, request = {}) => {
    const text = String(url);
    if (request.pool === undefined && !isHandAgentUrl(text)) return fromHere(url, request);
    if (request.sessionId !== undefined) return privateNetworks.fetch(text, request.sessionId, request);
    throw new OutboundRefusal("bad_url", "a server behind a hand agent is reached for sessions alone");
  };
}

function searchProvider({ TENDON_WEB_SEARCH_URL: url, TENDON_WEB_SEARCH_KEY: key }: PartsDeps["config"]) {
  if (url === undefined && key !== undefined)
    throw new StartupError("TENDON_WEB_SEARCH_KEY is set, but TENDON_WEB_SEARCH_URL is not", 2);
  return url === undefined ? undefined : { url, key };
}

function trusted(file: string | undefined): string[] | undefined {
  if (file === undefined) return undefined;
  try {
    return [...rootCertificates, readFileSync(file, "utf8")];
  } catch (error) {
    throw new StartupError(`cannot read TENDON_PROXY_UPSTREAM_CA_FILE: ${messageOf(error)}`, 2);
  }
}
