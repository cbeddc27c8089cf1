/** A platform that the official client speaks to, with a model that is faked at its wire. */
import Anthropic from "@anthropic-ai/sdk";
import { startDatabasePlatform } from "./database-platform.ts";
import {
  type FakeMessagesApi,
  type FakeMessagesApiOptions,
  startFakeMessagesApi,
} from "./fake-messages-api.ts";
import type { Platform } from "./platform.ts";

export const TOOLSET = { type: "agent_toolset_20260401" as const };

export const say = (words: string) => ({
  type: "user.message" as const,
  content: [{ type: "text" as const, text: words }],
});

export class HttpRig {
  readonly api: FakeMessagesApi;
  readonly platform: Platform;
  /** With the admin's key; repeats nothing. */
  readonly client: Anthropic;

  private constructor(api: FakeMessagesApi, platform: Platform) {
    this.api = api;
    this.platform = platform;
    this.client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
  }

  static async start(script: NonNullable<FakeMessagesApiOptions["script"]>): Promise<HttpRig> {
    const api = await startFakeMessagesApi({ script });
    const env = { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } };
    return new HttpRig(api, await startDatabasePlatform({ env }));
  }

  /** Of an agent with the usual tools, in an environment of its own. */
  async newSession() {
    const { agents, environments, sessions } = this.client.beta;
    const agent = await agents.create({ name: "helper", model: "claude-test", tools: [TOOLSET] });
    const environment = await environments.create({ name: `env ${agent.id}`, config: { type: "cloud" } });
    return sessions.create({ agent: agent.id, environment_id: environment.id });
  }

  /** A plain request with the admin's key. */
  http(path: string, init: RequestInit = {}): Promise<Response> {
    const headers = { authorization: `Bearer ${this.platform.adminKey}`, ...init.headers };
    return fetch(`${this.platform.url}${path}`, { ...init, headers });
  }

  async stop(): Promise<void> {
    await this.platform.stop();
    await this.api.stop();
  }
}

/** Of a stream that was opened by plain HTTP: frames as they came. */
export async function* framesOf(
  response: Response,
): AsyncGenerator<{ id?: string; event?: string; data?: string }> {
  let buffered = "";
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
    buffered += chunk;
    for (let end = buffered.indexOf("\n\n"); end >= 0; end = buffered.indexOf("\n\n")) {
      const lines = buffered.slice(0, end).split("\n");
      buffered = buffered.slice(end + 2);
      yield Object.fromEntries(lines.map((line) => /^(\w*): ?(.*)$/.exec(line)!.slice(1, 3)));
    }
  }
}

export async function untilIdle(response: Response) {
  const frames: { id?: string; event?: string; data?: string }[] = [];
  for await (const frame of framesOf(response)) {
    if (frame.event !== undefined) frames.push(frame);
    if (frame.event === "session.status_idle") break;
  }
  return frames;
}
