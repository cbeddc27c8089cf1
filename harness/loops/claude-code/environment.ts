/** The environment of the SDK's program. Its only secret is what it needs to ask the model. Pure. */
import { SERVER_NAME } from "./tool-names.ts";

export interface ModelAccess {
  readonly apiKey: string | undefined;
  readonly authToken: string | undefined;
  readonly baseUrl: string | undefined;
}

export interface EnvironmentInput {
  /** What every program gets: nothing secret. */
  readonly plain: Readonly<Record<string, string>>;
  readonly model: ModelAccess;
  readonly proxy: { readonly httpsProxy: string | undefined; readonly noProxy: string | undefined };
  readonly scratch: string;
  readonly maxOutputTokens: number;
}

/** Further requests to other hosts, other models, or of the SDK's own accord. */
const TURNED_OFF = {
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  DISABLE_TELEMETRY: "1",
  DISABLE_ERROR_REPORTING: "1",
  DISABLE_AUTOUPDATER: "1",
  DISABLE_UPDATES: "1",
  DISABLE_GROWTHBOOK: "1",
  DISABLE_BUG_COMMAND: "1",
  // A request is repeated by the runner, which knows how often it was.
  CLAUDE_CODE_MAX_RETRIES: "0",
  CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK: "1",
  CLAUDE_CODE_DISABLE_REFUSAL_FALLBACK: "1",
  CLAUDE_CODE_DISABLE_REFUSAL_RETRY: "1",
  // Summaries would be requests that the log knows nothing of.
  DISABLE_COMPACT: "1",
  DISABLE_AUTO_COMPACT: "1",
  CLAUDE_CODE_DISABLE_CLAUDE_MDS: "1",
  CLAUDE_CODE_DISABLE_BUNDLED_SKILLS: "1",
  CLAUDE_CODE_DISABLE_BACKGROUND_TASKS: "1",
  CLAUDE_CODE_DISABLE_MCP_TASK_BACKGROUND: "1",
  CLAUDE_CODE_DISABLE_FILE_CHECKPOINTING: "1",
  CLAUDE_CODE_ENABLE_PROMPT_SUGGESTION: "false",
  ENABLE_TOOL_SEARCH: "false",
  ENABLE_MCP_LARGE_OUTPUT_FILES: "false",
} as const;

/** Results are bounded by the hands that gave them. */
const MAX_RESULT_TOKENS = "10000000";
/** Longer than a program is kept waiting. */
const TOOL_TIMEOUT_MS = "600000";
const STARTUP_WAIT_MS = "30000";
const YEAR_MS = "31536000000";

export function sdkEnvironment(input: EnvironmentInput): Record<string, string> {
  const { plain, model, proxy, scratch, maxOutputTokens } = input;
  const environment: Record<string, string> = {
    ...plain,
    ...TURNED_OFF,
    HOME: scratch,
    TMPDIR: scratch,
    CLAUDE_CODE_TMPDIR: scratch,
    CLAUDE_CONFIG_DIR: `${scratch}/.claude`,
    // A turn that stands unfinished in the transcript goes on by itself, however old it is.
    CLAUDE_CODE_RESUME_INTERRUPTED_TURN: "1",
    CLAUDE_CODE_RESUME_INTERRUPTED_TURN_MAX_AGE_MS: YEAR_MS,
    // No request is made before the session's tools are there.
    CLAUDE_CODE_MCP_ALWAYS_LOAD_JOIN_BEFORE_INPUT: "1",
    CLAUDE_CODE_MCP_PREWAIT_SERVERS: SERVER_NAME,
    CLAUDE_CODE_MCP_PREWAIT_SERVERS_MS: STARTUP_WAIT_MS,
    CLAUDE_CODE_MCP_STARTUP_WAIT_MS: STARTUP_WAIT_MS,
    MAX_MCP_OUTPUT_TOKENS: MAX_RESULT_TOKENS,
    MCP_TOOL_TIMEOUT: TOOL_TIMEOUT_MS,
  };
  const more = {
    ANTHROPIC_API_KEY: model.apiKey,
    ANTHROPIC_AUTH_TOKEN: model.authToken,
    ANTHROPIC_BASE_URL: model.baseUrl,
    HTTPS_PROXY: proxy.httpsProxy,
    NO_PROXY: proxy.noProxy,
    CLAUDE_CODE_MAX_OUTPUT_TOKENS: maxOutputTokens > 0 ? String(maxOutputTokens) : undefined,
  };
  for (const [name, value] of Object.entries(more)) if (value !== undefined) environment[name] = value;
  return environment;
}
