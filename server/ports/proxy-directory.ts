/** What the other areas may ask of the part that knows proxies. */
import type { PublicSealingKey } from "../../kit/vault/sealed-content.ts";
import type {
  AskAuthorities,
  AskCheckWebhookUrl,
  AskDeliverWebhook,
  AskFinishConnect,
  AskReseal,
  AskStartConnect,
  AskValidate,
  ProxyAnswer,
  SealingKey,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { WebAbilities } from "../store/replicas.ts";
import type { AskedProxy, TunnelAsk } from "./tunnels.ts";

type Ask<M> = Omit<M, "$typeName" | "$unknown" | "askId">;

/** What a proxy can be asked; its id is given when it is sent. */
export type ProxyAsk =
  | { readonly case: "validate"; readonly value: Ask<AskValidate> }
  | { readonly case: "reseal"; readonly value: Ask<AskReseal> }
  | { readonly case: "authorities"; readonly value: Ask<AskAuthorities> }
  | { readonly case: "startConnect"; readonly value: Ask<AskStartConnect> }
  | { readonly case: "finishConnect"; readonly value: Ask<AskFinishConnect> }
  | { readonly case: "deliverWebhook"; readonly value: Ask<AskDeliverWebhook> }
  | { readonly case: "checkWebhookUrl"; readonly value: Ask<AskCheckWebhookUrl> };

/** The same with the id that it is sent under. */
export function askWithId(ask: ProxyAsk, askId: string) {
  switch (ask.case) {
    case "validate":
      return { case: ask.case, value: { ...ask.value, askId } };
    case "reseal":
      return { case: ask.case, value: { ...ask.value, askId } };
    case "authorities":
      return { case: ask.case, value: { ...ask.value, askId } };
    case "startConnect":
      return { case: ask.case, value: { ...ask.value, askId } };
    case "finishConnect":
      return { case: ask.case, value: { ...ask.value, askId } };
    case "deliverWebhook":
      return { case: ask.case, value: { ...ask.value, askId } };
    case "checkWebhookUrl":
      return { case: ask.case, value: { ...ask.value, askId } };
  }
}

export interface AskOptions {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
}

export interface ReachableProxy {
  /** Where harnesses reach it. */
  readonly url: string;
  /** Tools of the web that it runs. */
  readonly web: WebAbilities;
}

export interface ProxyDirectory {
  /** One of the connected proxies; one with an empty URL while none is. Answered from memory. */
  any(): ReachableProxy;
  /** Whether one is connected, here or elsewhere. Answered from memory. */
  isAnyConnected(): boolean;
  /** A session ended: every proxy closes what is open for it. Lossy; a proxy that misses it lets its own time limits decide. */
  forgetSession(sessionId: string): void;
  /**
   * Asks one of the proxies that are connected to this replica, in turns, or to another one. An answer with a reason is an
   * answer. NOT_CONFIGURED while none is connected, UNAVAILABLE when it goes away meanwhile, DEADLINE_EXCEEDED.
   */
  ask(ask: ProxyAsk, options: AskOptions): Promise<ProxyAnswer>;
  /** The same for those of this replica alone; for other replicas. */
  askHere(ask: ProxyAsk, options: AskOptions): Promise<ProxyAnswer>;
  /**
   * Asks one of the proxies that are connected to this replica, and may serve the workspace, to open its end of a tunnel;
   * undefined when there is none. They come in turns.
   */
  askTunnelHere(ask: TunnelAsk): AskedProxy | undefined;
  /** Other replicas to which proxies are connected, as of the last few seconds. */
  holders(): readonly string[];
  /** The key that secrets are sealed to now; undefined while no proxy has ever published one. */
  currentSealingKey(): Promise<PublicSealingKey | undefined>;
  /** Public keys that the proxies of this replica want secrets sealed to: one list a proxy, its newest key first. */
  sealingKeys(): readonly (readonly SealingKey[])[];
}
