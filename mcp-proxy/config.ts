/** The proxy's settings, read once. */
import { LOG_LEVELS } from "../kit/log.ts";
import { KNOWN_NAMES } from "../kit/settings/known-names.ts";
import { integer, oneOf, port, text, url } from "../kit/settings/parsers.ts";
import { defineSettings, readSettings, type SettingValues } from "../kit/settings/settings.ts";

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
  TENDON_PROXY_SEALING_KEY_FILE: {
    parse: text(),
    default: ".tendon/proxy-sealing.key",
    help: "File with the key that secrets are sealed to; made with mode 0600 when there is none. Nothing else may read it.",
  },
  TENDON_CA_FILE: { parse: text(), help: "Certificates (PEM) to trust instead of the system's." },
  HTTPS_PROXY: {
    parse: url(["http", "https"]),
    aliases: ["https_proxy"],
    help: "Corporate proxy (CONNECT) for connections that leave.",
  },
  NO_PROXY: {
    parse: text(),
    aliases: ["no_proxy"],
    help: "Hosts that are reached without the corporate proxy.",
  },
  TENDON_LOG_LEVEL: { parse: oneOf(LOG_LEVELS), default: "info", help: "How much is logged." },
  TENDON_LIFELINE_FD: {
    parse: integer({ min: 3, max: 1023 }),
    help: "Descriptor whose end stops the program; for launchers.",
  },
});

export type ProxyConfig = SettingValues<typeof proxySettings>;

export function readConfig() {
  return readSettings(proxySettings, process.env, { knownElsewhere: KNOWN_NAMES });
}
