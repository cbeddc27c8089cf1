/** The official SDKs, in two versions and four languages, do the same with the HTTP API of the built programs, whose model is faked at its wire. */
import Newest, { toFile } from "@anthropic-ai/sdk";
import Older, { toFile as olderToFile } from "anthropic-sdk-0-135";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import {
  type FakeMessagesApi,
  followInstructions,
  startFakeMessagesApi,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import type { Platform } from "../kit/platform.ts";
import { type Sdk, STEPS } from "./sdks/acceptance.ts";
import { INSTALL_WITHIN_MS, LANGUAGES, type RunAcceptance } from "./sdks/languages.ts";
import type { Missing } from "./toolchain.ts";

let model: FakeMessagesApi;
let platform: Platform;
/** They are installed while the platform starts and the first of them runs. */
let installing: ReadonlyMap<string, Promise<Missing | RunAcceptance>>;

beforeAll(async () => {
  installing = new Map(
    LANGUAGES.map(([name, { missing, install }]) => {
      const installed = (async () => (await missing()) ?? install())();
      installed.catch(() => {}); // told where it is waited for
      return [name, installed];
    }),
  );
  model = await startFakeMessagesApi({
    script: (request) => {
      const last = JSON.stringify(request.messages.at(-1));
      if (last.includes("tool_result")) {
        const answer = /the user's answer/.exec(last)?.[0] ?? "nothing";
        return turn([`The user says: ${answer}`]);
      }
      return last.includes("ask the user") ? turn([toolUse("ask_user", {})]) : followInstructions(request);
    },
  });
  platform = await startDatabasePlatform({
    programs: ["mcp-proxy", "harness"],
    env: { harness: { ANTHROPIC_API_KEY: model.apiKey, ANTHROPIC_BASE_URL: model.url } },
  });
});

afterAll(async () => {
  await Promise.allSettled(installing.values());
  await platform?.stop();
  await model?.stop();
});

const options = () => ({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });

const SDKS: readonly (readonly [version: string, sdk: () => Sdk])[] = [
  ["1.14", () => ({ client: new Newest(options()), toFile, name: "newest" })],
  [
    "0.135",
    () => ({ client: new Older(options()) as unknown as Newest, toFile: olderToFile, name: "older" }),
  ],
];

describe.each(SDKS)("the official SDK for TypeScript %s", (_version, sdk) => {
  test.each(STEPS)("%s", async (_what, run) => {
    await run(sdk());
  });
});

describe.each(LANGUAGES)("the official SDK for %s", (language) => {
  let run: Missing | RunAcceptance;

  beforeAll(async () => {
    run = await installing.get(language);
  }, INSTALL_WITHIN_MS);

  beforeEach((context) => {
    if (typeof run !== "function") context.skip(run);
  });

  test("makes agents, environments, sessions, vaults, files, skills and memories, and follows a turn to its end", async () => {
    const accept = run as RunAcceptance;
    const said = await accept({ TENDON_URL: platform.url, TENDON_API_KEY: platform.adminKey });
    expect(said).toContain("accepted by");
  });
});
