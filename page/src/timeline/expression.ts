// Regular expressions in bounded time: the states that a text can be in are followed side by side, none is tried again.

/** A state: which characters lead on from it, or what holds there without one; and the states after it. */
interface State {
  takes: ((character: string) => boolean) | null;
  at: "" | "begin" | "end" | "word" | "not word";
  next: number[];
}

interface Machine {
  states: State[];
  begin: number;
  end: number;
}

/** States of one expression, and steps of one search: an expression from a link must not hang the page. */
const MOST_STATES = 2000;
const MOST_STEPS = 10_000_000;
const WORD = /\w/;
const CLASSES: Record<string, RegExp> = { d: /\d/, D: /\D/, w: WORD, W: /\W/, s: /\s/, S: /\S/ };
const CONTROL: Record<string, string> = { n: "\n", r: "\r", t: "\t", f: "\f", v: "\v", 0: "\0" };

/** Compile an expression, of which case does not matter; throws what it does not understand. */
export function compiled(expression: string): (text: string) => boolean {
  const machine = new Reader(expression).read();
  let steps = 0;
  return (text) => {
    const found = matches(machine, text, MOST_STEPS - steps);
    steps += found.steps;
    return found.matches;
  };
}

function matches({ states, begin, end }: Machine, text: string, most: number): { matches: boolean; steps: number } {
  const seen = new Int32Array(states.length).fill(-1);
  let [now, steps]: [number[], number] = [[], 0];
  for (let place = 0; place <= text.length; place++) {
    const after: number[] = [];
    const open = [...now, begin];
    while (open.length) {
      const number = open.pop()!;
      if (seen[number] === place) continue;
      seen[number] = place;
      const state = states[number]!;
      if (++steps > most) throw new Error("takes too long");
      if (number === end) return { matches: true, steps };
      if (state.takes) { if (place < text.length && state.takes(text[place]!)) after.push(...state.next); }
      else if (!state.at || holds(state.at, text, place)) open.push(...state.next);
    }
    now = after;
  }
  return { matches: false, steps };
}

function holds(at: State["at"], text: string, place: number): boolean {
  if (at === "begin") return place === 0;
  if (at === "end") return place === text.length;
  const edge = WORD.test(text[place - 1] ?? "") !== WORD.test(text[place] ?? "");
  return edge === (at === "word");
}

/** A part of an expression: makes its states, those after it being `next`, and returns where it begins. */
type Part = (next: number) => number;

class Reader {
  private place = 0;
  private readonly made: State[] = [];
  constructor(private readonly text: string) {}

  /** The states of the expression, where it begins, and where it has matched. */
  read(): Machine {
    const part = this.either();
    if (this.place < this.text.length) throw new Error("a ) without (");
    const end = this.state({ takes: null, at: "", next: [] });
    return { states: this.made, begin: part(end), end };
  }

  private state(state: State): number {
    if (this.made.length >= MOST_STATES) throw new Error("too long");
    return this.made.push(state) - 1;
  }

  private either(): Part {
    const parts = [this.sequence()];
    while (this.text[this.place] === "|") { this.place++; parts.push(this.sequence()); }
    return parts.length === 1 ? parts[0]! : (next) => this.state({ takes: null, at: "", next: parts.map((part) => part(next)) });
  }

  private sequence(): Part {
    const parts: Part[] = [];
    while (this.place < this.text.length && !"|)".includes(this.text[this.place]!)) parts.push(this.repeated(this.single()));
    return (next) => parts.reduceRight((after, part) => part(after), next);
  }

  private repeated(part: Part): Part {
    const found = /^(?:[*+?]|\{(\d+)(?:(,)(\d*))?\})/.exec(this.text.slice(this.place));
    if (!found) return part;
    this.place += found[0].length;
    if (this.text[this.place] === "?") this.place++; // whether it matches does not depend on how much is taken
    const sign = found[0];
    const least = sign === "+" ? 1 : Number(found[1] ?? 0);
    const most = sign === "?" ? 1 : "*+".includes(sign) || (found[2] && !found[3]) ? Infinity : Number(found[3] || found[1]);
    if (most < least) throw new Error("numbers out of order");
    return this.repeated((next) => {
      let after = next;
      if (most === Infinity) {
        const loop = this.state({ takes: null, at: "", next: [] });
        this.made[loop]!.next = [part(loop), next];
        after = loop;
      } else for (let count = least; count < most; count++) after = this.state({ takes: null, at: "", next: [part(after), next] });
      for (let count = 0; count < least; count++) after = part(after);
      return after;
    });
  }

  private single(): Part {
    const character = this.text[this.place++]!;
    if (character === "(") return this.group();
    if (character === "[") return this.taking(this.characters());
    if (character === ".") return this.taking((one) => one !== "\n");
    if (character === "^" || character === "$") return this.holding(character === "^" ? "begin" : "end");
    if ("*+?".includes(character)) throw new Error("nothing to repeat");
    if (character !== "\\") return this.taking(same(character));
    const escaped = this.escaped();
    if (escaped === "b" || escaped === "B") return this.holding(escaped === "b" ? "word" : "not word");
    return this.taking(CLASSES[escaped] ? (one) => CLASSES[escaped]!.test(one) : same(CONTROL[escaped] ?? escaped));
  }

  private group(): Part {
    if (this.text.startsWith("?:", this.place)) this.place += 2;
    else if (this.text[this.place] === "?") throw new Error("(?…) is not known");
    const part = this.either();
    if (this.text[this.place++] !== ")") throw new Error("a ( without )");
    return part;
  }

  private escaped(): string {
    const character = this.text[this.place++];
    if (character === undefined) throw new Error("ends with \\");
    if (/[1-9kpPuxc]/.test(character)) throw new Error(`\\${character} is not known`);
    return character;
  }

  private characters(): (character: string) => boolean {
    const not = this.text[this.place] === "^";
    if (not) this.place++;
    const tests: ((character: string) => boolean)[] = [];
    while (this.text[this.place] !== "]") {
      const first = this.inClass();
      if (typeof first !== "string") { tests.push(first); continue; }
      if (this.text[this.place] !== "-" || this.text[this.place + 1] === "]") { tests.push(same(first)); continue; }
      this.place++;
      const last = this.inClass();
      if (typeof last !== "string" || last < first) throw new Error("a range out of order");
      tests.push((one) => [one, one.toLowerCase(), one.toUpperCase()].some((either) => either >= first && either <= last));
    }
    this.place++;
    return (one) => tests.some((test) => test(one)) !== not;
  }

  private inClass(): string | ((character: string) => boolean) {
    const character = this.text[this.place++];
    if (character === undefined) throw new Error("a [ without ]");
    if (character !== "\\") return character;
    const escaped = this.escaped();
    return CLASSES[escaped] ? (one) => CLASSES[escaped]!.test(one) : escaped === "b" ? "\b" : CONTROL[escaped] ?? escaped;
  }

  private taking(takes: (character: string) => boolean): Part {
    return (next) => this.state({ takes, at: "", next: [next] });
  }

  private holding(at: State["at"]): Part {
    return (next) => this.state({ takes: null, at, next: [next] });
  }
}

function same(character: string): (one: string) => boolean {
  const low = character.toLowerCase();
  return (one) => one.toLowerCase() === low;
}
