#!/bin/sh
# A loop in plain shell, without a model: for every message it looks at the disk with the tool `bash`, then says so.
# Lines begin with what they are, and events with their type, so that `case` is enough to read them. See docs/loops.md.
next=look
while IFS= read -r line; do
  case $line in
    '{"type":"event","event":{"type":"user.message",'*) next=look ;;
    '{"type":"event","event":{"type":"agent.tool_result",'*) next=tell ;;
    '{"type":"step",'*)
      if [ "$next" = look ]; then
        echo '{"type":"preview","text":"Looking at "}'
        echo '{"type":"preview","text":"the disk."}'
        echo '{"type":"message","text":"Looking at the disk."}'
        echo '{"type":"call","name":"bash","input":{"command":"df -h ."}}'
      else
        echo '{"type":"message","text":"The result above is what df says."}'
      fi
      echo '{"type":"end","stop":"done"}'
      ;;
  esac
done
