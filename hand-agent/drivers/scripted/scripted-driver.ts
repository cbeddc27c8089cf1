/**
 * A driver for tests: it does what another one does, but fails where its script says. Whatever the script does not
 * mention is the other driver's real work, so that what a failure leaves behind is real too.
 */
import type { Clock } from "../../../kit/clock.ts";
import type {
  DestroyReport,
  Driver,
  DriverCapabilities,
  Hand,
  HandSpec,
  JsonValue,
  ProbeResult,
  ToolDefinition,
} from "../driver.ts";
import { reportWith, suffer } from "./effects.ts";
import type { Script } from "./script.ts";
import { ScriptedHand } from "./scripted-hand.ts";

export interface ScriptedDriverOptions {
  /** Makes the hands. */
  readonly inner: Driver;
  readonly script: Script;
  readonly clock: Clock;
}

export class ScriptedDriver implements Driver {
  readonly name = "scripted";
  private readonly options: ScriptedDriverOptions;
  private readonly hands = new WeakMap<Hand, ScriptedHand>();

  constructor(options: ScriptedDriverOptions) {
    this.options = options;
  }

  get capabilities(): DriverCapabilities {
    return this.options.inner.capabilities;
  }

  get tools(): readonly ToolDefinition[] {
    return this.options.inner.tools;
  }

  async probe(): Promise<ProbeResult> {
    try {
      await suffer(this.options.clock, this.options.script.effectOn("probe", ""));
      return await this.options.inner.probe();
    } catch (error) {
      return { available: false, reason: (error as Error).message };
    }
  }

  async provision(spec: HandSpec, signal?: AbortSignal): Promise<Hand> {
    const { inner, script, clock } = this.options;
    await suffer(clock, script.effectOn("provision", spec.handId), signal);
    return this.wrap(await inner.provision(spec, signal));
  }

  async recover(handle: JsonValue, signal?: AbortSignal): Promise<Hand | "gone"> {
    const { inner, script, clock } = this.options;
    const effect = script.effectOn("recover", "", JSON.stringify(handle));
    await suffer(clock, effect, signal);
    if (effect.gone) return "gone";
    const hand = await inner.recover(handle, signal);
    return hand === "gone" ? "gone" : this.wrap(hand);
  }

  async discard(handId: string): Promise<DestroyReport> {
    const { inner, script, clock } = this.options;
    const effect = script.effectOn("destroy", handId);
    await suffer(clock, effect);
    return reportWith(await inner.discard(handId), effect);
  }

  listHandIds(): Promise<string[]> {
    return this.options.inner.listHandIds();
  }

  /** One object a hand, as the contract wants it. */
  private wrap(inner: Hand): ScriptedHand {
    const known = this.hands.get(inner);
    if (known !== undefined) return known;
    const { script, clock } = this.options;
    const hand = new ScriptedHand({ inner, script, clock });
    this.hands.set(inner, hand);
    return hand;
  }
}
