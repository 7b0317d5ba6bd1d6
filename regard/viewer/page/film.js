/* The film of a training: a bar in all views that plays its frames, and controls while it goes on. */

import { formatCount, formatNumber, h, last, messageOf, s } from "./dom.js";

const POLL = 1000; // milliseconds between two looks at a run that is being trained
const PLAY = 350; // between two frames
const SOON = 40; // until the page is asked again whether it has drawn a frame
const RATES = [0.1, 0.2, 0.5, 1, 2, 5, 10];
const SIZE = /** @type {[number, number]} */ ([600, 26]);

/** Whether the page still draws the frame before. */
const isBusy = () => Boolean(document.getElementById("main")?.hasAttribute("aria-busy"));

/** @type {(id: string, words: string, onclick: () => void) => HTMLButtonElement} */
const button = (id, words, onclick) => h("button", { type: "button", id, onclick }, words);

/** @param {number} rate */
const rateName = (rate) => `× ${rate}`;

/** The bar of one page. It stays while views come and go. */
class FilmBar {
  playing = false;
  /** @type {number | null} the frame to show next */
  wanted = null;
  /** @type {number | null} the frame that this bar asked for last */
  asked = null;
  waiting = false;
  /** @type {number | undefined} until the next frame of a film that plays */
  timer;
  polling = false;
  problem = "";

  /**
   * @param {HTMLElement} root
   * @param {App} app
   */
  constructor(root, app) {
    this.app = app;
    this.play = button("film-play", "Play", () => this.setPlaying(!this.playing));
    this.slider = h("input", {
      type: "range", id: "film-at", min: 0, step: 1, "aria-label": "Step of the training",
      oninput: () => this.choose(this.frames[Number(this.slider.value)][0]),
    });
    this.curve = s("svg", {
      viewBox: `0 0 ${SIZE[0]} ${SIZE[1]}`, preserveAspectRatio: "none", "aria-hidden": "true",
    });
    this.output = h("output", { id: "film-step" });
    this.follow = button("film-follow", "Follow the newest", () => this.setFollowing(!this.following));
    this.pause = button("training-pause", "Pause training", () =>
      this.ask({ pause: !this.app.manifest.control?.paused }));
    this.rate = h("select", {
      id: "training-rate", onchange: () => this.ask({ rate: Number(this.rate.value) }),
    });
    this.status = h("span", { class: "pale", id: "training-status", role: "status" });
    this.controls = h("span", { class: "choice" }, this.pause,
      h("label", { for: "training-rate" }, "learning rate"), this.rate);
    root.replaceChildren(this.play, h("span", { class: "film-line" }, this.curve, this.slider), this.output,
      this.follow, this.controls, this.status);
  }

  get frames() {
    return this.app.manifest.film ?? [];
  }

  get following() {
    return Boolean(this.app.state.follow) && this.app.manifest.training;
  }

  get source() {
    return /** @type {import("./source.js").Server} */ (this.app.source);
  }

  /** The number of the frame that is shown; the last one for the final model. */
  get index() {
    const { step } = this.app.manifest;
    const at = this.frames.findLastIndex(([frame]) => step !== null && frame <= step);
    return step === null ? this.frames.length - 1 : Math.max(0, at);
  }

  /** Draw the bar as the page is now. */
  update() {
    const { manifest, state } = this.app;
    const chosen = state.checkpoint === undefined ? null : Number(state.checkpoint);
    if (this.asked !== null && chosen !== this.asked && this.wanted === null) this.leave();
    this.showFrame();
    this.showControls(manifest.control ?? null);
    this.play.textContent = this.playing ? "Pause film" : "Play";
    this.follow.hidden = !manifest.training;
    this.follow.setAttribute("aria-pressed", String(this.following));
    document.body.classList.toggle("playing", this.playing || this.following);
    const newest = manifest.newest ?? last(this.frames)?.[0];
    if (this.following && newest !== undefined) this.want(newest);
    if (manifest.training && !this.polling) this.poll();
    clearTimeout(this.timer);
    if (this.playing) this.timer = setTimeout(() => this.tick(), PLAY); // a frame was drawn: the next one
  }

  showFrame() {
    const { step } = this.app.manifest;
    this.slider.max = String(this.frames.length - 1);
    this.slider.value = String(this.index);
    const [frame, loss] = this.frames[this.index] ?? [0, null];
    const where = step === null ? "final model" : `step ${formatCount(frame)}`;
    const words = loss === null ? where : `${where} · loss ${formatNumber(loss)}`;
    this.output.textContent = words;
    this.output.dataset.loss = String(loss);
    this.slider.setAttribute("aria-valuetext", words);
    const losses = this.frames.map(([, value]) => value);
    const known = losses.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const x = (/** @type {number} */ i) => (i / Math.max(1, losses.length - 1)) * SIZE[0];
    const points = losses.flatMap((value, i) => (value === null ? []
      : [`${x(i)},${2 + (1 - (value - low) / (high - low || 1)) * (SIZE[1] - 4)}`]));
    this.curve.replaceChildren(s("polyline", { points: points.join(" ") }));
  }

  /** @param {TrainingControl | null} control */
  showControls(control) {
    this.controls.hidden = !control || control.ended;
    const { training } = this.app.manifest;
    const states = control?.ended || !training ? "" : control?.paused ? "training is paused" : "training";
    this.status.textContent = this.problem || (control?.ended ? "training has ended" : states);
    if (!control || document.activeElement === this.rate) return;
    this.pause.textContent = control.paused ? "Go on training" : "Pause training";
    const rates = [...new Set([...RATES, control.rate])].sort((a, b) => a - b);
    this.rate.replaceChildren(...rates.map((rate) =>
      h("option", { value: rate, selected: rate === control.rate }, rateName(rate))));
  }

  // Frames

  /** Show a frame as soon as the one before is drawn. @param {number} step */
  want(step) {
    this.wanted = step;
    if (!this.waiting) this.pump();
  }

  pump() {
    this.waiting = false;
    if (this.wanted === null) return;
    if (isBusy()) {
      this.waiting = true;
      setTimeout(() => this.pump(), SOON);
      return;
    }
    [this.asked, this.wanted] = [this.wanted, null];
    if (String(this.asked) !== this.app.state.checkpoint) {
      this.app.go({ checkpoint: this.asked, cell: null }, { replace: true });
    }
  }

  /** The reader chose a frame. @param {number} step */
  choose(step) {
    this.leave();
    this.want(step);
  }

  /** Neither play nor follow any longer. */
  leave() {
    [this.playing, this.asked, this.wanted] = [false, null, null];
    if (this.app.state.follow) this.app.go({ follow: null }, { quiet: true });
  }

  /** @param {boolean} playing */
  setPlaying(playing) {
    const { step } = this.app.manifest;
    const ended = step === null || this.index >= this.frames.length - 1;
    this.leave();
    this.playing = playing;
    if (playing && ended) this.want(this.frames[0][0]);
    this.update();
  }

  tick() {
    if (!this.playing) return;
    if (isBusy() || this.wanted !== null) {
      this.timer = setTimeout(() => this.tick(), SOON);
    } else if (this.index < this.frames.length - 1) {
      this.want(this.frames[this.index + 1][0]);
    } else if (this.app.manifest.training) {
      this.setFollowing(true);
    } else {
      this.setPlaying(false);
    }
  }

  /** @param {boolean} following */
  setFollowing(following) {
    this.leave();
    this.app.go({ follow: following ? 1 : null }, { quiet: true });
    this.update();
  }

  // The training

  async poll() {
    this.polling = true;
    try {
      const { film, newest, steps, training, control } = await this.source.progress();
      Object.assign(this.app.manifest, { film, newest, steps, training, control });
      this.problem = "";
    } catch (error) {
      this.problem = messageOf(error);
    }
    this.polling = false;
    const { training } = this.app.manifest;
    if (training) {
      this.polling = true;
      setTimeout(() => this.poll(), POLL);
    }
    this.update();
  }

  /** @param {object} request */
  async ask(request) {
    try {
      await this.source.steer(request);
      this.problem = "";
    } catch (error) {
      this.problem = messageOf(error);
    }
    this.rate.blur();
    this.update();
  }
}

/** @type {FilmBar | null} */
let bar = null;

/** @type {(root: HTMLElement, app: App) => void} */
export function showFilm(root, app) {
  bar ??= new FilmBar(root, app);
  root.hidden = !app.manifest.film?.length;
  bar.update();
}
