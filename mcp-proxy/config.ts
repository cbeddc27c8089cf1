import { KNOWN_NAMES } from "../kit/settings/known-names.ts";
import { port, text, url } from "../kit/settings/parsers.ts";
import { defineSettings, readSettings, type SettingValues } from "../kit/settings/settings.ts";
import { dialSettings, programSettings } from "../kit/settings/shared-settings.ts";

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
  ...dialSettings,
  ...programSettings,
});

export type ProxyConfig = SettingValues<typeof proxySettings>;

export function readConfig() {
  return readSettings(proxySettings, process.env, { knownElsewhere: KNOWN_NAMES });
}
