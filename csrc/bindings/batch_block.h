// A block of envs that step together: a stepper advances arrays of rows, and the block does the
// rest. A step of all envs is the fast path: one call of the stepper and one write to the frame. If
// some are reset or not begun, step_some() handles subsets, one call each.
//
// A stepper is a Stepper of pysampler/_vector/stepper.py.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "batch_rows.h"
#include "classic.h"
#include "frame_block.h"

namespace pysampler::bindings {

class BatchBlock : public FrameBlock {
 public:
    // Episodes are truncated after `limit` steps.
    BatchBlock(const py::object& stepper, std::size_t count, std::size_t first,
               const std::shared_ptr<Meter>& meter, std::optional<std::int64_t> limit,
               bool is_inline);

    void use(const py::object& frames, const std::shared_ptr<Infos>& infos,
             const std::string& autoreset, const std::string& keep) override;
    bool step_with(std::uint32_t frame, const py::object& actions) override;
    bool step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) override;
    bool reset(std::uint32_t frame, const py::list& calls) override;
    void replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                 const std::vector<bool>& over) override;
    void set_options(std::size_t i, const py::object& options, std::int64_t version) override;

    // Why the envs cannot step, or be reset, together; None if they can. If so, the attribute
    // `leave` of this object, called with the reason, makes the block that takes its place.
    py::object why_leave(std::uint32_t frame, const py::object& actions);
    py::object why_not_reset(const py::list& calls) const;

    // The states of envs, one row each.
    py::object states(const py::object& ids) const;
    void set_states(const py::object& ids, const py::object& states);

    // In a chunk that an outer block makes step by step: the envs that make no more steps, or None.
    void set_stopped(const std::optional<py::array_t<bool>>& envs);

    const py::object& stepper() const { return stepper_; }
    const Flags& begun() const { return begun_; }  // reset at least once
    const py::array_t<std::int64_t>& elapsed() const { return elapsed_; }

 private:
    using Places = std::vector<std::int32_t>;
    struct Advanced {
        py::object observations, rewards, terminated;
        py::dict infos;
    };

    void start(std::uint32_t frame);
    bool step_now(std::uint32_t frame, const py::object& actions);
    template <class... Arguments>
    py::object ask(const py::str& method, const Arguments&... arguments);
    Advanced advance(const py::object& ids, const py::object& actions, const py::object& dropped);
    void take_errors();
    void step_rows(std::uint32_t frame, const std::optional<Ids>& ids, const py::object& actions);
    void step_and_reset(std::uint32_t frame, const py::object& actions);
    void step_some(std::uint32_t frame, const py::object& actions);
    void end_some(std::uint32_t frame, const Ids& ended, const Ids& rows, const Advanced& results);
    void reset_envs(std::uint32_t frame, Places envs, const std::vector<py::tuple>* calls,
                    std::optional<std::uint8_t> has_final);
    Places prepared(const Places& envs, const std::vector<py::tuple>* calls, bool& with_options);
    py::tuple begin_envs(const Ids& ids, bool with_options);
    void report(const py::object& error);
    void leave_infos(const Places& envs, const py::object& infos, const Places& rows,
                     bool final = false);
    bool all_begun() const;
    py::object actions_in(std::uint32_t frame);
    bool has_left(std::uint32_t frame, const py::object& actions);
    bool done(std::uint32_t frame);
    py::dict episodes() const;

    py::object stepper_;
    py::list errors_;             // of the stepper: (env, exception)
    bool steps_ended_, checks_;   // attributes of the stepper
    py::object kernel_;           // steps its envs without Python, if it is a Classic
    Classic* native_ = nullptr;   // the same
    bool wrong_options_ = false;  // of later resets
    py::array_t<std::int64_t> elapsed_;
    BatchRows rows_;
    Flags begun_;
    std::vector<bool> idle_;  // in a chunk, the envs that make no more steps; empty: all make steps
    py::object successor_;    // the block that has taken the place of this one
    py::str advance_ = interned("advance"), begin_ = interned("begin"),
            observe_ = interned("observe");
};

}  // namespace pysampler::bindings
