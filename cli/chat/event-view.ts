/**
 * Shows a session to a person while it happens: text and output as previews as they form, completed by what the log says
 * in the end. Previews are lossy, so whatever they left out is written when the event arrives.
 */
import type { Event, Preview, PreviewOutput } from "../../proto/gen/tendon/v1/event_pb.js";
import { contentText, type Json, objectOf, payloadOf, stopReasonOf, stringOf } from "../event-payload.ts";
import { printable } from "../table.ts";

export interface EventViewOptions {
  write(text: string): void;
  /** Also what a client sent. */
  showUser: boolean;
  /**
   * Besides text, calls, results and errors, one line each: `ends` only ends that are no end of a turn; `work` every end and what
   * is no bookkeeping of the session; `all` every event.
   */
  events: "ends" | "work" | "all";
  colour: boolean;
}

/** Which limit it was, and what lets the session go on. */
function spentText({ stop_details }: Json): string {
  const { limit, used, allowed } = objectOf(stop_details);
  const name = stringOf(limit);
  return name === ""
    ? ""
    : ` (${name}: ${stringOf(used)} used of ${stringOf(allowed)}); "session budget" raises it`;
}

const MAX_INPUT_CHARS = 200;
/** Output of a call beyond this is only counted; the log has all of it. */
const MAX_OUTPUT_CHARS = 20_000;
/** Texts that are forming at a time, and how much of each is kept to compare with the end. */
const MAX_FORMING = 64;
const MAX_KEPT_CHARS = 1_000_000;
const GUTTER = "  │ ";
const MAX_LABEL_CHARS = 60;
const BOOKKEEPING = /^(session|span|brain)\./;

type Style = "dim" | "bold" | "red";
const CODES: Record<Style, string> = { dim: "2", bold: "1", red: "31" };

export class EventView {
  private readonly options: EventViewOptions;
  /** What was shown of texts and outputs that are not complete yet, by event id. */
  private readonly shown = new Map<string, string>();
  /** What the cursor stands behind: nothing, or an unfinished text or output. */
  private open: string | undefined;
  private atLineStart = true;
  /** Calls without a result, in short, by the id of their event. */
  private readonly calls = new Map<string, string>();
  /** Several calls were open at once, and one still is: what belongs to which has to be said. */
  private isParallel = false;

  constructor(options: EventViewOptions) {
    this.options = options;
  }

  preview({ kind }: Preview): void {
    if (kind.case === "text") this.addText(kind.value.eventId, kind.value.text);
    if (kind.case === "output") this.addOutput(kind.value);
  }

  event(event: Event): void {
    const payload = payloadOf(event);
    switch (event.type) {
      case "user.message":
        if (this.options.showUser) this.message(payload);
        break;
      case "user.define_outcome":
        if (this.options.showUser)
          this.line(`${this.style("bold", "outcome")}  ${printable(stringOf(payload.description))}`);
        break;
      case "span.outcome_evaluation_start":
        this.line(this.style("dim", `◇ evaluation${numberOf(payload)}: the work is judged`));
        break;
      case "span.outcome_evaluation_end":
        this.judged(payload);
        break;
      case "agent.message":
        this.completeText(event.id, contentText(payload.content));
        break;
      case "agent.tool_use":
      case "agent.mcp_tool_use":
      case "agent.custom_tool_use":
        this.call(event.id, toolName(payload), objectOf(payload.input));
        break;
      case "agent.tool_result":
      case "agent.mcp_tool_result":
        this.completeOutput(stringOf(payload.tool_use_id ?? payload.mcp_tool_use_id), payload);
        break;
      case "session.error":
        this.error(objectOf(payload.error));
        break;
      case "hand.lost": {
        const reason = stringOf(payload.reason) || "its workspace is gone";
        this.line(this.style("red", `✗ the hand is lost: ${reason}`));
        break;
      }
      default:
        this.other(event);
    }
  }

  /** Ends what is on the line. */
  finishLine(): void {
    if (!this.atLineStart) this.write("\n");
    this.open = undefined;
  }

  private call(id: string, name: string, input: Json): void {
    const text = inputText(input);
    this.line(`● ${this.style("bold", name)} ${text}`);
    const label = [...`${printable(name)} ${text}`.replaceAll("\n", " ")];
    const isLong = label.length > MAX_LABEL_CHARS;
    this.calls.set(id, label.slice(0, MAX_LABEL_CHARS).join("") + (isLong ? "…" : ""));
    if (this.calls.size > MAX_FORMING) this.calls.delete(this.calls.keys().next().value!);
    if (this.calls.size > 1) this.isParallel = true;
  }

  private message(payload: Json): void {
    this.line(`${this.style("bold", "you")}  ${printable(contentText(payload.content))}`);
  }

  private addText(id: string, text: string): void {
    this.switchTo(id);
    this.keep(id, text);
    this.write(printable(text));
  }

  private completeText(id: string, text: string): void {
    const before = this.shown.get(id) ?? "";
    if (before !== "" && text.startsWith(before)) {
      if (text.length > before.length) {
        this.switchTo(id);
        this.write(printable(text.slice(before.length)));
      }
    } else {
      this.finishLine();
      this.write(printable(text));
    }
    this.finishLine();
    this.shown.delete(id);
  }

  /** Who came when half was over sees the whole output at its end instead. */
  private addOutput({ toolUseId, offset, text }: PreviewOutput): void {
    const before = this.shown.get(toolUseId);
    if (before === undefined && offset > 0n) return;
    this.keep(toolUseId, text);
    if ((before?.length ?? 0) >= MAX_OUTPUT_CHARS) return;
    this.switchToCall(toolUseId);
    this.writeIndented(text);
  }

  private completeOutput(id: string, payload: Json): void {
    const text = contentText(payload.content);
    const before = this.shown.get(id) ?? "";
    const rest = before !== "" && text.startsWith(before) ? text.slice(before.length) : text;
    if (text.trimEnd() !== before.trimEnd() && rest !== "") {
      if (rest === text) this.finishLine();
      this.switchToCall(id);
      this.writeIndented(rest.length <= MAX_OUTPUT_CHARS ? rest : rest.slice(0, MAX_OUTPUT_CHARS));
      if (rest.length > MAX_OUTPUT_CHARS)
        this.line(`${GUTTER}… ${rest.length - MAX_OUTPUT_CHARS} more characters`);
    }
    if (payload.is_error === true) {
      this.switchToCall(id);
      this.line(this.style("red", "  ✗ the call failed"));
    }
    this.finishLine();
    this.shown.delete(id);
    this.calls.delete(id);
    if (this.calls.size === 0) this.isParallel = false;
  }

  private judged(payload: Json): void {
    const { result, explanation } = payload;
    this.line(`◆ ${this.style("bold", `evaluation${numberOf(payload)}`)}: ${printable(stringOf(result))}`);
    this.writeIndented(stringOf(explanation));
    this.finishLine();
  }

  private error(error: Json): void {
    const retryMs =
      typeof error.retry_in_ms === "number"
        ? ` (tried again in ${Math.ceil(error.retry_in_ms / 1000)} s)`
        : "";
    const part = stringOf(error.part) === "" ? "" : `${stringOf(error.part)}: `;
    this.line(this.style("red", `✗ ${part}${stringOf(error.message) || stringOf(error.type)}${retryMs}`));
  }

  private other(event: Event): void {
    const reason = stopReasonOf(event);
    const { events } = this.options;
    if (reason === undefined) {
      const isShown = events === "all" || (events === "work" && !BOOKKEEPING.test(event.type));
      if (isShown) this.line(this.style("dim", `· ${event.type}`));
    } else if (events !== "ends" || reason !== "end_turn") {
      const why = reason === "budget_reached" ? spentText(payloadOf(event)) : "";
      this.line(this.style("dim", `· ${event.type.replace("session.status_", "")}: ${reason}${why}`));
    }
  }

  private keep(id: string, text: string): void {
    const before = this.shown.get(id) ?? "";
    if (before === "" && this.shown.size >= MAX_FORMING) this.shown.delete(this.shown.keys().next().value!);
    this.shown.set(id, (before + text).slice(0, MAX_KEPT_CHARS));
  }

  /** Texts of several calls may alternate: each goes on on a line of its own. */
  private switchTo(id: string): void {
    if (this.open !== id) this.finishLine();
    this.open = id;
  }

  private switchToCall(id: string): void {
    const label = this.isParallel && this.open !== id ? this.calls.get(id) : undefined;
    this.switchTo(id);
    if (label !== undefined) this.write(`${this.style("dim", `  ↳ ${label}`)}\n`);
  }

  private writeIndented(text: string): void {
    for (const part of printable(text).split(/(?<=\n)/)) this.write(this.atLineStart ? GUTTER + part : part);
  }

  private line(text: string): void {
    this.finishLine();
    this.write(`${text}\n`);
  }

  private write(text: string): void {
    if (text === "") return;
    this.options.write(text);
    this.atLineStart = text.endsWith("\n");
  }

  private style(style: Style, text: string): string {
    const shown = printable(text);
    return this.options.colour ? `\u001b[${CODES[style]}m${shown}\u001b[0m` : shown;
  }
}

/** As the model names it: with the slot of its hand, unless that is the default one. */
function toolName({ name, hand }: Json): string {
  const slot = stringOf(hand);
  return slot === "" ? stringOf(name) : `${slot}__${stringOf(name)}`;
}

/** For people, who count from one. */
function numberOf({ iteration }: Json): string {
  return typeof iteration === "number" ? ` ${iteration + 1}` : "";
}

/** The one argument that says it all, or the whole input in short. */
function inputText(input: Json): string {
  const main = input.command ?? input.path ?? input.file_path ?? input.pattern;
  const text = typeof main === "string" ? main : JSON.stringify(input);
  const characters = [...printable(text)];
  return characters.length <= MAX_INPUT_CHARS
    ? characters.join("")
    : `${characters.slice(0, MAX_INPUT_CHARS).join("")}…`;
}
