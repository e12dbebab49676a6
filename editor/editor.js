/** The editor of code and documents, with CodeMirror 6. One file is made of it, which views and the console load when somebody edits. */
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { json } from "@codemirror/lang-json";
import { python } from "@codemirror/lang-python";
import { bracketMatching, defineLanguageFacet, HighlightStyle, indentOnInput, indentUnit, Language, LRLanguage, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { c, cpp, csharp, java, kotlin } from "@codemirror/legacy-modes/mode/clike";
import { dockerFile } from "@codemirror/legacy-modes/mode/dockerfile";
import { go } from "@codemirror/legacy-modes/mode/go";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { yaml } from "@codemirror/legacy-modes/mode/yaml";
import { search, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, highlightActiveLineGutter, keymap, lineNumbers } from "@codemirror/view";
import { parser as css } from "@lezer/css";
import { tags } from "@lezer/highlight";
import { configureNesting, parser as html } from "@lezer/html";
import { GFM, parser as markdown } from "@lezer/markdown";

const stream = (mode) => () => StreamLanguage.define(mode);
const markup = () => {
  const scripts = configureNesting([{ tag: "script", parser: javascript().language.parser }, { tag: "style", parser: css }]);
  return LRLanguage.define({ parser: html.configure({ wrap: scripts }) });
};

/** By the names that Pygments gives them, in lower case; by the ends of file names as well, see ALIASES. */
const LANGUAGES = {
  bash: stream(shell), c: stream(c), "c#": stream(csharp), "c++": stream(cpp), css: () => LRLanguage.define({ parser: css }), docker: stream(dockerFile), go: stream(go), html: markup,
  java: stream(java), javascript: () => javascript({ jsx: true }), json, kotlin: stream(kotlin), markdown: () => new Language(defineLanguageFacet(), markdown.configure(GFM)),
  python: () => python(), rust: stream(rust), toml: stream(toml), typescript: () => javascript({ typescript: true, jsx: true }), xml: markup, yaml: stream(yaml),
};
const ALIASES = {
  cc: "c++", cjs: "javascript", cpp: "c++", cs: "c#", csharp: "c#", dockerfile: "docker", h: "c", hpp: "c++", htm: "html", js: "javascript", jsx: "javascript", kt: "kotlin", md: "markdown", mjs: "javascript",
  py: "python", pyi: "python", rs: "rust", sh: "bash", shell: "bash", svg: "xml", ts: "typescript", tsx: "typescript", yml: "yaml", zsh: "bash",
};

const COLOURS = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--syn-key)" },
  { tag: [tags.string, tags.special(tags.string), tags.regexp, tags.url], color: "var(--syn-str)" },
  { tag: [tags.number, tags.bool, tags.null, tags.atom, tags.constant(tags.name)], color: "var(--syn-num)" },
  { tag: [tags.function(tags.variableName), tags.function(tags.propertyName), tags.attributeName], color: "var(--syn-fn)" },
  { tag: [tags.typeName, tags.className, tags.tagName, tags.definition(tags.propertyName), tags.standard(tags.name), tags.meta], color: "var(--syn-type)" },
  { tag: [tags.comment, tags.quote], color: "var(--syn-com)" },
  { tag: [tags.heading, tags.strong], fontWeight: "600" },
  { tag: tags.emphasis, fontStyle: "italic" },
  { tag: tags.link, color: "var(--accent)" },
]);

const THEME = EditorView.theme({
  "&": { height: "100%", background: "none", color: "var(--ink)", fontSize: ".75rem" },
  "&.cm-focused": { outline: "2px solid var(--focus)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.25rem", fontVariantLigatures: "none" },
  ".cm-content": { padding: "8px 0", caretColor: "var(--ink)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { background: "none", color: "var(--ink-3)", border: "0", paddingLeft: "6px" },
  ".cm-activeLine, .cm-activeLineGutter": { background: "color-mix(in srgb, var(--accent-tint) 50%, transparent)", color: "inherit" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { background: "color-mix(in srgb, var(--accent) 25%, transparent)" },
  ".cm-panels": { background: "var(--raised)", color: "var(--ink)" },
  ".cm-panels.cm-panels-top": { borderBottom: "1px solid var(--line)" },
  ".cm-searchMatch": { background: "var(--warn-tint)", outline: "1px solid var(--warn)" },
  ".cm-panel.cm-search input, .cm-panel.cm-search button": { font: "inherit", background: "var(--surface)", color: "var(--ink)", border: "1px solid var(--control)", borderRadius: "var(--radius)" },
});

/** A page has one editor: the next one ends the listeners of the one before. */
let shown = null;

/**
 * An editor with a text. Tab leaves it, as everywhere; Ctrl-F searches. In a shadow root its styles are constructed
 * style sheets, which a strict Content-Security-Policy allows; elsewhere they would be style elements.
 * @param {{text: string, label: string, language: string, isProse: boolean, testid: string, onChange?: () => void}} options
 */
function makeEditor({ text, label, language, isProse, testid, onChange }) {
  const name = language.toLowerCase();
  const support = LANGUAGES[ALIASES[name] ?? name];
  const separator = /\r\n/.test(text) && !/(^|[^\r])\n/.test(text) ? "\r\n" : "\n";
  const element = document.createElement("div");
  element.style.height = "100%";
  shown?.destroy();
  const view = shown = new EditorView({
    parent: element.attachShadow({ mode: "open" }),
    state: EditorState.create({
      doc: text,
      extensions: [
        isProse ? EditorView.lineWrapping : [lineNumbers(), highlightActiveLineGutter(), highlightActiveLine()],
        history(), drawSelection(), bracketMatching(), indentOnInput(), indentUnit.of(/^\t/m.test(text) ? "\t" : name === "python" ? "    " : "  "), search({ top: true }),
        EditorState.lineSeparator.of(separator), EditorState.tabSize.of(4), keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap]),
        EditorView.contentAttributes.of({ tabindex: "0", "aria-label": label, spellcheck: String(isProse), "data-testid": testid }),
        EditorView.updateListener.of((update) => update.docChanged && onChange?.()), syntaxHighlighting(COLOURS), THEME, support ? support() : [],
      ],
    }),
  });
  return { element, focus: () => view.focus(), get value() { return view.state.sliceDoc(); } };
}

window.toolgateEditor = makeEditor;
