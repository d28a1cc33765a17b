# Flattens the subset of YAML that NoCloud data is written in to lines "path<TAB>value".
#
#   users:                       users[0]	default
#     - default             ->   users[1].name	kim
#     - name: kim
#
# Understood: block mappings and sequences nested by indentation, plain, 'single' and "double" quoted
# scalars, literal | and folded > blocks, comments, and flow sequences and mappings on one line.
# Not understood, and an error that names the line: tabs as indentation, anchors, aliases, tags,
# flow collections over several lines, several documents. A newline in a value is written \n, and \ is \\.

function fail(why) {
    printf "line %d: %s\n", NR, why >"/dev/stderr"
    failed = 1
    exit 1
}

function escape(text) {
    gsub(/\\/, "\\\\", text)
    gsub(/\n/, "\\n", text)
    return text
}

function emit(path, text) { printf "%s\t%s\n", path, escape(text) }

function trim(text) {
    sub(/^[ \t]+/, "", text)
    sub(/[ \t\r]+$/, "", text)
    return text
}

# Cuts a trailing comment off a plain scalar: a '#' counts only after white space.
function uncomment(text) {
    if (text ~ /^#/) return ""
    if (match(text, /[ \t]#/)) text = substr(text, 1, RSTART - 1)
    return trim(text)
}

# Reads one quoted scalar from the start of `text`; sets `rest` to what follows it.
function quoted(text,   quote, i, c, out) {
    quote = substr(text, 1, 1)
    out = ""
    for (i = 2; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (quote == "'" && c == "'") {
            if (substr(text, i + 1, 1) == "'") { out = out "'"; i++; continue }
            rest = substr(text, i + 1)
            return out
        }
        if (quote == "\"" && c == "\"") { rest = substr(text, i + 1); return out }
        if (quote == "\"" && c == "\\") {
            c = substr(text, ++i, 1)
            if (c == "n") c = "\n"
            else if (c == "t") c = "\t"
            else if (c == "0") fail("a NUL in a string")
        }
        out = out c
    }
    fail("a quoted string does not end on its line")
}

# Reads a scalar inside a flow collection; sets `rest`.
function flow_scalar(text,   end) {
    if (text ~ /^['"]/) return quoted(text)
    end = match(text, /[],}]|:( |$)/) ? RSTART : length(text) + 1
    rest = substr(text, end)
    return trim(substr(text, 1, end - 1))
}

# Emits the flow collection (or scalar) at the start of `text`; sets `rest`.
function flow(path, text,   n, key, v) {
    text = trim(text)
    if (text ~ /^\[/) {
        n = 0
        rest = trim(substr(text, 2))
        while (rest !~ /^\]/) {
            if (rest == "") fail("a flow sequence does not end on its line")
            flow(path "[" n++ "]", rest)
            rest = trim(rest)
            if (rest ~ /^,/) rest = trim(substr(rest, 2))
            else if (rest !~ /^\]/) fail("a flow sequence needs a comma")
        }
        rest = substr(rest, 2)
    } else if (text ~ /^\{/) {
        rest = trim(substr(text, 2))
        while (rest !~ /^\}/) {
            if (rest == "") fail("a flow mapping does not end on its line")
            key = flow_scalar(rest)
            rest = trim(rest)
            if (rest !~ /^:/) fail("a flow mapping needs 'key: value'")
            flow((path == "" ? "" : path ".") key, substr(rest, 2))
            rest = trim(rest)
            if (rest ~ /^,/) rest = trim(substr(rest, 2))
            else if (rest !~ /^\}/) fail("a flow mapping needs a comma")
        }
        rest = substr(rest, 2)
    } else {
        v = flow_scalar(text)
        emit(path, v)
    }
}

# A value that stands on its key's own line.
function scalar(path, text,   v) {
    if (text ~ /^[&*!]/) fail("anchors, aliases and tags are not supported")
    if (text ~ /^[[{]/) {
        flow(path, text)
        if (uncomment(trim(rest)) != "") fail("text after a flow collection")
    } else if (text ~ /^['"]/) {
        v = quoted(text)
        if (uncomment(trim(rest)) != "") fail("text after a quoted string")
        emit(path, v)
    } else {
        emit(path, uncomment(text))
    }
}

# Leaves every level that is deeper than `indent`.
function leave(indent) {
    while (depth > 0 && column[depth] > indent) depth--
}

function end_block() {
    if (!in_block) return
    if (block_folded) sub(/ +$/, "", block_text)
    sub(/\n+$/, "", block_text)
    emit(block_path, block_text block_tail)
    in_block = 0
}

# One line's content that starts in column `indent`.
function entry(indent, text,   key, path, parent) {
    leave(indent)
    if (text ~ /^-( |$)/) {
        # A sequence may stand in the same column as the key that owns it.
        if (depth > 0 && column[depth] == indent && kind[depth] == "map") {
            if (!open_key[depth]) fail("a sequence item among mapping keys")
            depth++
            column[depth] = indent
            kind[depth] = "seq"
            base[depth] = base[depth - 1] (base[depth - 1] == "" ? "" : ".") last[depth - 1]
            count[depth] = 0
        } else if (depth == 0 || column[depth] < indent) {
            parent = depth == 0 ? "" : child()
            depth++
            column[depth] = indent
            kind[depth] = "seq"
            base[depth] = parent
            count[depth] = 0
        }
        path = base[depth] "[" count[depth]++ "]"
        item[depth] = path
        if (!match(text, /^-[ ]+/)) { open_item[depth] = 1; return }
        open_item[depth] = 1
        text = substr(text, RLENGTH + 1)
        if (text ~ /^-( |$)/ || is_pair(text)) entry(indent + RLENGTH, text)
        else if (text !~ /^#/) value_of(path, text, indent)
        return
    }
    if (!is_pair(text)) fail("expected 'key: value' or '- item'")
    # The sequence in the same column has ended: this key belongs to the mapping that owns it.
    while (depth > 0 && column[depth] == indent && kind[depth] == "seq") depth--
    if (depth == 0 || column[depth] < indent) {
        parent = depth == 0 ? "" : child()
        depth++
        column[depth] = indent
        kind[depth] = "map"
        base[depth] = parent
    }
    if (text ~ /^['"]/) { key = quoted(text); text = trim(rest); text = substr(text, 2) }
    else { match(text, /:( |$)/); key = trim(substr(text, 1, RSTART - 1)); text = substr(text, RSTART + 1) }
    if (key ~ /^[&*!?]/) fail("anchors, aliases, tags and complex keys are not supported")
    last[depth] = key
    path = (base[depth] == "" ? "" : base[depth] ".") key
    if ((path) in seen) fail("the key '" key "' is given twice")
    seen[path] = 1
    text = trim(text)
    if (text == "" || text ~ /^#/) { open_key[depth] = 1; return }
    open_key[depth] = 0
    value_of(path, text, indent)
}

function value_of(path, text, indent) {
    if (text ~ /^[|>][-+]?[ \t]*(#.*)?$/) {
        in_block = 1
        block_path = path
        block_folded = text ~ /^>/
        block_tail = ""
        block_text = ""
        block_indent = -1
        block_parent = indent
        return
    }
    scalar(path, text)
}

# The path under which something deeper than the present level is put.
function child() {
    if (kind[depth] == "seq") return item[depth]
    if (!open_key[depth]) fail("indentation without an owner")
    return (base[depth] == "" ? "" : base[depth] ".") last[depth]
}

function is_pair(text,   t) {
    if (text ~ /^[[{]/) return 0
    if (text ~ /^['"]/) { t = text; quoted(t); return trim(rest) ~ /^:( |$)/ }
    return text ~ /^[^#]*:( |$)/ && !(text ~ /^[^:]* #/)
}

BEGIN { depth = 0; in_block = 0; failed = 0 }

{
    sub(/\r$/, "")
    line = $0
    if (in_block) {
        if (line ~ /^[ ]*$/) { if (block_indent >= 0) block_text = block_text "\n"; next }
        match(line, /^ */)
        if (block_indent < 0 && RLENGTH > block_parent) block_indent = RLENGTH
        if (block_indent >= 0 && RLENGTH >= block_indent) {
            block_text = block_text substr(line, block_indent + 1) (block_folded ? " " : "\n")
            next
        }
        end_block()
    }
    if (line ~ /^[ \t]*(#.*)?$/) next
    if (line ~ /^---[ \t]*$/ && depth == 0) next
    if (line ~ /^(---|\.\.\.)/) fail("several documents are not supported")
    match(line, /^ */)
    if (substr(line, RLENGTH + 1, 1) == "\t") fail("a tab in the indentation")
    indent = RLENGTH
    if (depth == 0 && substr(line, indent + 1) ~ /^[{[]/) { scalar("", substr(line, indent + 1)); next }
    entry(indent, substr(line, indent + 1))
}

END { if (!failed) end_block() }
