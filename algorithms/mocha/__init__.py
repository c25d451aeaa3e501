"""The mathematics of MOCHA: federated multi-task learning of linear models by dual coordinate ascent.

This package knows neither rounds nor peers. The formulas cover both conventions of the objective, the paper's and that
of the authors' program:

    P(W) = sum_t c_t sum_i loss(w_t x_ti, y_ti) + R(W),   R(W) = 1/2 tr(W^T M^-1 W),   W = M V,   v_t = c_t X_t alpha_t

with c_t = 1 (paper, sum of losses) or 1 / n_t (program, mean of losses), and one row for each task, so that W and V are
(T, F). The coupling M holds all knowledge about the tasks' relations. Neither its inverse nor Omega nor the inverse of
Sigma is needed.

    losses        the four losses and their coordinate updates
    dual          tasks, parts of the objective and of the gap, subproblem, theta
    sdca          the local solver and one round
    omega         the relations of tasks from W, and M from them
    comparators   CoCoA, the minibatch methods, and their times

Two modules connect these to the rounds of `servers/mocha.py`:

    relations     a choice of relations with its numbers
    linear        a client's examples as a task

Source: Smith, Chiang, Sanjabi, Talwalkar, Federated multi-task learning, NIPS 2017.
"""
