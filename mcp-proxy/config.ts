import { KNOWN_NAMES } from "../kit/settings/known-names.ts";
import { flag, list, oneOf, port, text, url } from "../kit/settings/parsers.ts";
import { defineSettings, readSettings, type SettingValues } from "../kit/settings/settings.ts";
import { dialSettings, programSettings } from "../kit/settings/shared-settings.ts";
import { tracingSettings } from "../kit/trace-settings.ts";
import { denyEntry } from "./outbound/deny-list.ts";

export const proxySettings = defineSettings({
  TENDON_URL: {
    parse: url(["http", "https"]),
    default: "http://127.0.0.1:7400",
    help: "Where the server is.",
  },
  TENDON_PROXY_KEY: {
    parse: text(),
    secret: true,
    required: true,
    help: "The proxy's API key (role proxy).",
  },
  TENDON_PROXY_HOST: {
    parse: text(),
    default: "127.0.0.1",
    help: "Address that harnesses reach the proxy at.",
  },
  TENDON_PROXY_PORT: {
    parse: port(),
    default: 7401,
    help: "Port that harnesses reach the proxy at; 0 takes a free one.",
  },
  TENDON_PROXY_URL: {
    parse: url(["http", "https"]),
    help: "URL that harnesses are told, when it is not made of host and port: behind a load balancer, for one.",
  },
  TENDON_PROXY_SEALING_KEYS: {
    parse: text({ maxChars: 32_768 }),
    secret: true,
    help: "The keys themselves, from a secret store, in place of TENDON_PROXY_SEALING_KEY_FILE: JSON in one line of a private P-256 JWK, or of a JWK set with the newest first.",
  },
  TENDON_PROXY_SEALING_KEY_FILE: {
    parse: text(),
    default: ".tendon/proxy-sealing.key",
    help: "File with the keys that secrets are sealed to; made with mode 0600 when there is none. Nothing else may read it.",
  },
  TENDON_PROXY_DESTINATIONS: {
    parse: oneOf(["changeable", "fixed"]),
    default: "changeable",
    help: "Whether a credential may get another destination without its secret being entered again: changeable or fixed.",
  },
  TENDON_PROXY_DENY: {
    parse: list(denyEntry()),
    help: "What the proxy must not reach: host names, *.domains, addresses and networks (10.0.0.0/8), each with :port or without, separated by commas.",
  },
  TENDON_PROXY_WEBHOOKS_TO: {
    parse: oneOf(["public", "anywhere"]),
    default: "public",
    help: "Where webhooks may go: public addresses alone, or anywhere, private addresses and plain http to these included. Link-local and metadata addresses, and Tendon's own listeners, never.",
  },
  TENDON_PROXY_UPSTREAM_CA_FILE: {
    parse: text(),
    help: "Certificates (PEM) to trust for MCP servers, token endpoints, git hosts, hosts of variables and receivers of webhooks, besides the system's.",
  },
  TENDON_WEB_FETCH: {
    parse: flag(),
    default: true,
    help: "Whether agents may have the tool web_fetch, which reads pages of the public internet from where the proxy runs.",
  },
  TENDON_WEB_SEARCH_URL: {
    parse: url(["http", "https"]),
    help: "Where searches of the tool web_search go (docs/web.md); not set, no agent has the tool.",
  },
  TENDON_WEB_SEARCH_KEY: {
    parse: text(),
    secret: true,
    help: "Key of the search provider, sent to it as a bearer token.",
  },
  ...dialSettings,
  ...programSettings,
  ...tracingSettings,
});

export type ProxyConfig = SettingValues<typeof proxySettings>;

export function readConfig() {
  return readSettings(proxySettings, process.env, { knownElsewhere: KNOWN_NAMES });
}
