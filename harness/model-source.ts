/** Where the installation's model requests go. The demo model answers only where nothing says otherwise. */
import type { Clock } from "../kit/clock.ts";
import type { Logger } from "../kit/log.ts";
import { DEMO_MODEL_NAME, startDemoModel } from "./demo-model/demo-model.ts";

export interface ModelSettings {
  readonly apiKey: string | undefined;
  readonly authToken: string | undefined;
  readonly baseUrl: string | undefined;
  /** Id of the model for agents that name none. */
  readonly model: string | undefined;
}

export interface ModelSource {
  readonly kind: "api" | "gateway" | "demo";
  readonly apiKey: string | undefined;
  readonly authToken: string | undefined;
  readonly baseUrl: string | undefined;
  readonly defaultModel: string;
  stop(): Promise<void>;
}

const DEFAULT_MODEL = "claude-opus-5-5";

/** Starts the demo model when there is no key, no token and no base URL, and says so in one line. */
export async function openModelSource(
  { apiKey, authToken, baseUrl, model }: ModelSettings,
  clock: Clock,
  log: Logger,
): Promise<ModelSource> {
  if (apiKey || authToken || baseUrl) {
    const kind = baseUrl ? "gateway" : "api";
    const defaultModel = model ?? DEFAULT_MODEL;
    log.info({ source: kind, model: defaultModel }, "models are asked for real");
    return { kind, apiKey, authToken, baseUrl, defaultModel, stop: async () => {} };
  }
  const demo = await startDemoModel({ log, clock });
  log.warn("no ANTHROPIC_API_KEY is set: a scripted demo answers in place of a model");
  return {
    kind: "demo",
    apiKey: undefined,
    authToken: demo.authToken,
    baseUrl: demo.baseUrl,
    defaultModel: model ?? DEMO_MODEL_NAME,
    stop: () => demo.stop(),
  };
}
