// Colours of code: comments, strings, numbers and the common words of the common languages.
// Every pattern takes time proportional to the code.

import { element } from "./dom.js";

const MAX_CHARACTERS = 50000;
const WORDS = new Set(`abstract and as async await base begin bool boolean break byte case catch char
  class const continue crate def default defer del delete do done double elif else elsif end enum
  esac except export extends extern false fi final finally float fn for foreach from func function
  global go goto if impl implements import in include instanceof int interface is lambda let local
  long loop match mod module move mut namespace new nil none None nonlocal not null nullptr or
  override package pass private protected pub public raise ref return select self Self sizeof static
  str string struct super switch template then this throw throws trait True true try type typedef
  typeof undefined union unless unsafe until use using val var virtual void volatile when where while
  with yield False SELECT FROM WHERE INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE JOIN LEFT
  RIGHT INNER OUTER ON GROUP ORDER BY HAVING LIMIT AND OR NOT NULL AS DISTINCT UNION PRIMARY KEY`
  .split(/\s+/));
const HASH = "#[^\\n]*";
const SLASHES = "\\/\\/[^\\n]*|\\/\\*[^]*?(?:\\*\\/|$)";
const COMMENTS = [
  [/^(py|python|python3|sh|bash|shell|zsh|console|ruby|rb|perl|r|yaml|yml|toml|ini|make|makefile|dockerfile|elixir|julia)$/, HASH],
  [/^(sql|lua|haskell|hs)$/, "--[^\\n]*"],
  [/^(js|javascript|ts|typescript|jsx|tsx|java|c|h|cpp|c\+\+|cc|cs|csharp|go|rust|rs|swift|kotlin|kt|scala|css|scss|json|jsonc|dart|zig|cuda)$/, SLASHES],
  [/^(php)$/, `${HASH}|${SLASHES}`],
  [/^(html|xml|svg|vue)$/, "<!--[^]*?(?:-->|$)"],
];
const STRINGS = `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:\\\\.|[^"\\\\\\n])*"?|'(?:\\\\.|[^'\\\\\\n])*'?|\`(?:\\\\[^]|[^\`\\\\])*\`?`;

/** Return the nodes of code; a language that is not known stays as it is. */
export function highlight(code, language = "") {
  const comments = COMMENTS.find(([names]) => names.test(language.toLowerCase()))?.[1];
  if (!comments || code.length > MAX_CHARACTERS) return [code];
  const pattern = new RegExp(`(${comments})|(${STRINGS})|(\\b\\d[\\w.]*)|([A-Za-z_]\\w*)`, "g");
  const nodes = [];
  let end = 0;
  for (const match of code.matchAll(pattern)) {
    const [text, comment, string, number] = match;
    const kind = comment ? "comment" : string ? "string" : number ? "number" : WORDS.has(text) ? "word" : "";
    if (!kind) continue;
    nodes.push(code.slice(end, match.index), element("span", { className: `code-${kind}` }, text));
    end = match.index + text.length;
  }
  return [...nodes, code.slice(end)];
}
