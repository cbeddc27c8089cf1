/** Settings that several programs have: spread into their tables, so that a name means the same everywhere. */
import { failpoints } from "../failpoint.ts";
import { LOG_LEVELS } from "../log.ts";
import { integer, oneOf, text, url } from "./parsers.ts";
import { defineSettings } from "./settings.ts";

/** Of every program that runs until it is stopped. */
export const programSettings = defineSettings({
  TENDON_LOG_LEVEL: { parse: oneOf(LOG_LEVELS), default: "info", help: "How much is logged." },
  TENDON_LIFELINE_FD: {
    parse: integer({ min: 3, max: 1023 }),
    help: "Descriptor whose end stops the program; for launchers.",
  },
  TENDON_FAILPOINTS: {
    parse: failpoints(),
    help: "For tests only: points at which the program fails on purpose. Leave it unset.",
  },
});

/** Of every program that dials the server. */
export const dialSettings = defineSettings({
  TENDON_CA_FILE: {
    parse: text(),
    help: "Certificates (PEM) to trust for the server instead of the system's.",
  },
  HTTPS_PROXY: {
    parse: url(["http"]),
    aliases: ["https_proxy"],
    help: "Corporate proxy (CONNECT) for connections that leave; http:// only.",
  },
  NO_PROXY: {
    parse: text(),
    aliases: ["no_proxy"],
    help: "Hosts that are reached without the corporate proxy.",
  },
});
